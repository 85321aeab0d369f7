"""What happens in the demo, in order. Each step changes the manifests or asks a question, and nothing is staged behind
the scenes: the fleet is the one that `kvgrove up` runs, the client is the official OpenAI SDK.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from openai import AsyncOpenAI

from kvgrove_cli import api_keys
from kvgrove_cli.demo import checks, stage
from kvgrove_cli.demo.checks import Facts
from kvgrove_cli.demo.rows import Row, ask
from kvgrove_cli.demo.stage import NAMESPACE, PREFIX, SECOND_MODEL, Scene
from kvgrove_cli.fleet import Fleet, FleetOptions
from kvgrove_cli.members import FleetShape
from kvgrove_cli.narration import narrated
from kvgrove_cli.status import FleetStatus

NODES = 2
_STARTUP_SECONDS = 300.0
_STEP_SECONDS = 180.0

_LONG_QUESTION = (
    "Hello, I ordered a touring bicycle and two panniers from you last week, and yesterday the carrier left the box at "
    "my neighbour's house. One side of the box was torn open, the left pannier has a long scratch, and the front light "
    "does not turn on although I charged it for a whole night. I took photographs of everything before I unpacked the "
    "rest. What should I do now, and by when do I have to do it?"
)
_SHORT_QUESTION = "How long does a large service take?"


class Story:
    """One telling: `tell` runs all of it. ``say`` gets one line for each thing that happens."""

    def __init__(self, model_path: Path, manifests: Path, state_dir: Path, say: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self._scene = Scene(model_path)
        self._manifests, self._state_dir = manifests, state_dir
        self._say = say

    async def tell(self) -> dict[str, bool]:
        """The verdicts. Raises KvgroveError where the fleet cannot go on."""
        self._scene.write(self._manifests)
        keys = self._state_dir / "demo-keys.yaml"
        secrets = {tenant: api_keys.new_secret() for tenant in ("acme", "globex")}
        for tenant, secret in secrets.items():
            api_keys.create(keys, secret=secret, key_id=tenant, tenant=tenant)
        options = FleetOptions(self._manifests, self._state_dir / "fleet", FleetShape(nodes=NODES), keys)
        self._say(f"starting {NODES} nodes and a gateway")
        async with Fleet(options) as fleet:
            async with narrated(fleet, self._say):
                await fleet.ready(_STARTUP_SECONDS)
            self._say(f"the fleet is ready: {fleet.base_url}")
            clients = {
                tenant: AsyncOpenAI(base_url=fleet.base_url, api_key=secret, max_retries=0, timeout=_STEP_SECONDS)
                for tenant, secret in secrets.items()
            }
            try:
                facts = await self._steps(fleet, clients["acme"], clients["globex"])
            finally:
                for client in clients.values():
                    await client.close()
        return checks.judge({row.name: row for row in self.rows}, facts)

    async def _steps(self, fleet: Fleet, acme: AsyncOpenAI, globex: AsyncOpenAI) -> Facts:
        await self._ask(acme, checks.COLD, _LONG_QUESTION)
        await self._ask(acme, checks.WARM, _SHORT_QUESTION)
        await self._ask(acme, checks.AGAIN, _LONG_QUESTION)
        await self._ask(globex, checks.OTHER_TENANT, _LONG_QUESTION)

        self._say("the returns policy changes: version v2 is written to the manifests")
        before = fleet.status().namespace(NAMESPACE).fence
        invalidated = await self._change(
            fleet,
            replace(self._scene, returns_version=2),
            lambda current: current.namespace(NAMESPACE).fence != before and _invalidated(current),
        )
        counts = invalidated.namespace(NAMESPACE).invalidation
        self._say(f"every member has confirmed that v1 is unreadable ({counts.confirmed} of {NODES + 1} members)")
        await self._ask(acme, checks.DOCUMENT_CHANGED, _SHORT_QUESTION)

        self._say("warm-up is switched on: both nodes compute the declared prefix before anybody asks")
        await self._change(fleet, replace(self._scene, warm=True), _warm)
        await self._ask(globex, checks.REWARMED, _SHORT_QUESTION)

        self._say("a second ModelVersion with another chat template is added, beside the first")
        async with narrated(fleet, self._say):
            side_by_side = await self._change(fleet, replace(self._scene, second_model=True), _models_ready(2))
        generations = {model.generation for model in side_by_side.models}
        await self._change(fleet, replace(self._scene, model=SECOND_MODEL, warm=False), _served_by(SECOND_MODEL))
        await self._ask(acme, checks.NEW_MODEL, _SHORT_QUESTION)
        await self._change(fleet, replace(self._scene, model=stage.FIRST_MODEL), _served_by(stage.FIRST_MODEL))
        rolled_back = await self._ask(acme, checks.ROLLED_BACK, _SHORT_QUESTION)

        self._say(f"{rolled_back.node}, which answered last, is killed (SIGKILL)")
        fleet.kill(rolled_back.node)
        await self._ask(acme, checks.NODE_KILLED, _SHORT_QUESTION)
        replace(self._scene, second_model=False, warm=True).write(self._manifests)
        return Facts(
            document_invalidation_complete=_invalidated(invalidated),
            generations_side_by_side=len(generations) == 2 and "" not in generations,
            killed_node=rolled_back.node,
        )

    async def _ask(self, client: AsyncOpenAI, name: str, question: str) -> Row:
        row, answer = await ask(client, name, model=NAMESPACE, prefix=PREFIX, question=question)
        self.rows.append(row)
        self._say(f"{name}: {' '.join(answer.split())!r}")
        return row

    async def _change(self, fleet: Fleet, scene: Scene, reached: Callable[[FleetStatus], bool]) -> FleetStatus:
        """Write the manifests, let the fleet read them, and wait until every member follows and ``reached`` holds."""
        self._scene = scene
        scene.write(self._manifests)
        await fleet.apply()
        return await fleet.wait_for(lambda current: current.ready and reached(current), _STEP_SECONDS)


def _invalidated(current: FleetStatus) -> bool:
    return current.namespace(NAMESPACE).invalidation_complete


def _warm(current: FleetStatus) -> bool:
    namespace = current.namespace(NAMESPACE)
    return namespace.warm_wanted > 0 and namespace.warm_ready == namespace.warm_wanted


def _models_ready(count: int) -> Callable[[FleetStatus], bool]:
    return lambda current: sum(model.state == "Ready" for model in current.models) == count


def _served_by(model: str) -> Callable[[FleetStatus], bool]:
    return lambda current: current.namespace(NAMESPACE).model == model

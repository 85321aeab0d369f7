"""A whole fleet on one machine: manifests in, members as processes, a planner between them.

Usable from the command line, from tests and from the demo::

    async with Fleet(FleetOptions(manifests, state_dir)) as fleet:
        await fleet.ready(120)
        ... fleet.base_url ...

The manifests are looked at twice a second; a change that is sound is planned anew, one that is not leaves the last
good plan in force and becomes a problem of the status. Effects only: what is planned and granted is decided elsewhere.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq
import zmq.asyncio

from kvgrove_cli import api_keys, development_key, key_folders, status
from kvgrove_cli.durable import Unwritable
from kvgrove_cli.errors import FleetProblem, UsageProblem
from kvgrove_cli.manifests import Resources, parse, take_snapshot
from kvgrove_cli.members import FleetShape, Member, members_of
from kvgrove_cli.processes import Child, ChildState, Processes, RestartPolicy
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import FleetStatus, MemberStatus, Problem
from kvgrove_cli.supervisor import Supervisor
from kvgrove_cli.view import fleet_status, in_one_line
from kvgrove_crds.problems import ManifestError
from kvgrove_daemon.cache.segments import remove_dead_segments
from kvgrove_protocol.control import DAEMON, GATEWAY

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_STATUS_SECONDS = 0.2
"""At most this often is the status file written."""
_DRAIN_SECONDS = 15.0


@dataclass(frozen=True)
class FleetOptions:
    manifests: Path
    state_dir: Path
    shape: FleetShape = field(default_factory=FleetShape)
    keys: Path | None = None
    """None: the file in the state directory, made with a development key the first time."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)


class Fleet:
    """An async context manager: up on enter, drained and stopped on exit. Belongs to one event loop.

    Raises ManifestError, UsageProblem or FleetProblem on enter where it cannot start; nothing is left running then.
    """

    def __init__(self, options: FleetOptions) -> None:
        self.made_development_key = False
        """Whether a development key was made by this start; its value is in the state directory."""
        self.options = options
        self._state_dir = StateDir(options.state_dir)
        self._members: dict[str, Member] = {}
        self._processes = Processes(self._child_changed, self._child_ended, options.restart)
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self._dirty = asyncio.Event()
        self._resources = Resources()
        self._seen = b""
        self._refused: list[Problem] = []
        self._applying = asyncio.Lock()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            snapshot = await asyncio.to_thread(take_snapshot, self.options.manifests)
            resources = await asyncio.to_thread(parse, snapshot)
            stack.enter_context(self._state_dir)
            keys = self.options.keys or self._state_dir.keys_file
            if self.options.keys is None:
                self.made_development_key = development_key.ensure(self._state_dir)
            api_keys.read(keys)  # said here, before anything is started
            context = zmq.asyncio.Context()
            stack.callback(context.destroy, linger=0)
            link_keys = None if self.options.shape.plain_links else key_folders.ensure(self._state_dir.link_keys)
            self._supervisor = Supervisor(context, self._state_dir, changed=self._changed, keys=link_keys)
            stack.callback(self._supervisor.close)
            self._failed = asyncio.get_running_loop().create_future()
            stack.push_async_callback(self._stop_tasks)
            self._spawn(self._supervisor.serve())
            self._spawn(self._supervisor.keep_time())
            await self._take_over(snapshot.digest, resources)
            stack.push_async_callback(self._stop_members)
            for member in members_of(self.options.shape, self._state_dir, control=self._supervisor.address, keys=keys):
                self._members[member.name] = member
                await self._processes.start(member.spec)
            self._spawn(self._watch())
            self._spawn(self._write_status())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    # -- what people ask ----------------------------------------------------------------------------------------------

    @property
    def control_address(self) -> str:
        """Where members dial the planner."""
        return self._supervisor.address

    @property
    def peers_refused(self) -> dict[str, int]:
        """Peers that did not get into the fleet link, by reason."""
        return self._supervisor.peers_refused

    @property
    def base_url(self) -> str:
        """Of the first gateway, ``http://host:port/v1``; raises FleetProblem before it is up."""
        return self.base_urls[0]

    @property
    def base_urls(self) -> list[str]:
        urls = [
            f"{address}/v1"
            for member in self._members.values()
            if member.role == GATEWAY and (address := _written(member.address_file))
        ]
        if not urls:
            raise FleetProblem("no gateway is up yet: wait for the fleet to be ready")
        return urls

    def status(self) -> FleetStatus:
        """The state now; the same that goes into the status file."""
        stopped = {child.name for child in self._processes.statuses() if child.state == ChildState.STOPPED}
        view = self._supervisor.view(
            [name for name, member in self._members.items() if member.role == DAEMON and name not in stopped]
        )
        members = [self._member_status(member) for member in self._members.values()]
        return fleet_status(os.getpid(), view, members, self._refused)

    async def wait_for(self, reached: Callable[[FleetStatus], bool], seconds: float) -> FleetStatus:
        """The first status for which ``reached`` holds. FleetProblem after ``seconds``, or at once if it broke."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._raise_failure()
                    news = self._news
                    current = self.status()
                    if reached(current):
                        return current
                    await news.wait()
        except TimeoutError:
            raise FleetProblem(
                f"not reached within {seconds:g} s; {in_one_line(self.status())}", code="timeout"
            ) from None

    async def ready(self, seconds: float) -> FleetStatus:
        """Wait until everything is up and serves; raises FleetProblem at once where a member has given up."""

        def reached(current: FleetStatus) -> bool:
            for member in current.members:
                if member.state == ChildState.FAILED:
                    raise FleetProblem(
                        f"{member.name} does not start: {member.message or 'no message'} "
                        f"(log: {self._members[member.name].spec.log_file})"
                    )
            for model in current.models:
                if model.state in ("Failed", "Stalled"):
                    raise FleetProblem(f"ModelVersion {model.name}: {model.message}")
            return current.ready

        return await self.wait_for(reached, seconds)

    async def failed(self) -> None:
        """Returns never; raises what broke the fleet, if something does."""
        assert self._failed is not None  # noqa: S101 - entered
        await asyncio.shield(self._failed)

    # -- what people do -----------------------------------------------------------------------------------------------

    async def apply(self) -> None:
        """Read the manifests now and plan them. Raises ManifestError or UsageProblem where they are refused."""
        async with self._applying:
            snapshot = await asyncio.to_thread(take_snapshot, self.options.manifests)
            if snapshot.digest == self._seen and not self._refused:
                return
            self._seen = snapshot.digest
            try:
                resources = await asyncio.to_thread(parse, snapshot, self._resources)
            except ManifestError as error:
                self._refuse([Problem(object=p.file, reason=error.code, message=str(p)) for p in error.problems])
                raise
            await self._take_over(snapshot.digest, resources)

    def kill(self, name: str, *, restart: bool = False) -> None:
        """End a member as a crash would (SIGKILL)."""
        self._processes[name].kill(restart=restart)

    def child(self, name: str) -> Child:
        """The process of a member; raises KeyError for a name that is not of this fleet."""
        return self._processes[name]

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _take_over(self, digest: bytes, resources: Resources) -> None:
        await self._supervisor.apply(resources)
        self._seen, self._resources, self._refused = digest, resources, []
        self._changed()

    def _refuse(self, problems: list[Problem]) -> None:
        if problems != self._refused:
            for problem in problems:
                log.warning("manifests not taken over, the last good plan stays in force: %s", problem.message)
            self._refused = problems
            self._changed()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if (await asyncio.to_thread(take_snapshot, self.options.manifests)).digest != self._seen:
                    await self.apply()
            except ManifestError:
                continue  # noted by apply
            except UsageProblem as error:
                self._seen = b""
                self._refuse([Problem(object=str(self.options.manifests), reason=error.code, message=error.message)])

    async def _write_status(self) -> None:
        written: FleetStatus | None = None
        behind = False
        while True:
            current = self.status()
            if current != written:
                try:
                    await asyncio.to_thread(status.write, self._state_dir.status_file, current)
                    written, behind = current, False
                except Unwritable as problem:  # the fleet serves on without its picture; the next change tries again
                    if not behind:
                        log.warning("the status file is out of date: %s", problem.message)
                    behind = True
            await self._dirty.wait()
            self._dirty.clear()
            await asyncio.sleep(_STATUS_SECONDS)

    def _member_status(self, member: Member) -> MemberStatus:
        process = self._processes[member.name].status
        link = self._supervisor.link(member.name)
        return MemberStatus(
            name=member.name,
            role=member.role,
            state=process.state,
            connected=link.connected and process.state == ChildState.RUNNING,
            address=_written(member.address_file) if member.role == GATEWAY else link.address,
            boot=link.boot,
            applied=link.applied,
            pid=process.pid,
            restarts=process.restarts,
            message=process.message,
            kv_events=member.events.live if member.events is not None else "",
            kv_events_replay=member.events.replay if member.events is not None else "",
            metrics=_written(member.metrics_file),
        )

    def _child_changed(self, _child: Child) -> None:
        self._changed()

    async def _child_ended(self, name: str) -> None:
        for file in (self._members[name].address_file, self._members[name].metrics_file):
            if file is not None:
                file.unlink(missing_ok=True)  # the next process may get another port
        if self._members[name].role == DAEMON:
            # What it held is gone before the planner counts it as gone: an erasure may rest on that (I8).
            await asyncio.to_thread(remove_dead_segments, name, "")
        await self._supervisor.member_ended(name)

    def _changed(self) -> None:
        """Wakes everybody who waits for a state; what is set is never cleared, a fresh event takes its place."""
        self._dirty.set()
        self._news.set()
        self._news = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._failed is not None:
            if not self._failed.done():
                self._failed.set_exception(error)
                self._failed.exception()  # seen: whoever waits gets it, nobody must
            self._changed()

    def _raise_failure(self) -> None:
        if self._failed is not None and self._failed.done():
            self._failed.result()

    async def _stop_tasks(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _stop_members(self) -> None:
        """Gateways first: requests under way still need the nodes."""
        for role in (GATEWAY, DAEMON):
            names = [name for name, member in self._members.items() if member.role == role]
            await self._processes.stop(_DRAIN_SECONDS, names)
        for name in names:
            await asyncio.to_thread(remove_dead_segments, name, "")  # of those that were killed: it is reserved memory


def _written(file: Path | None) -> str:
    """The address that a member wrote once it was bound; empty before."""
    try:
        return file.read_text().strip() if file is not None else ""
    except FileNotFoundError:
        return ""

"""The gateway's assembly as one: what it remembers under which state, what it counts, and a template that hangs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prompt_fixtures import write_tokenizer

from kvgrove_gateway.assembling import Assembling
from kvgrove_gateway.errors import BadRequest
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.namespaces import Directory, Resolution
from kvgrove_gateway.prepare import Prepared
from kvgrove_gateway.settings import Limits
from kvgrove_link.body_store import BodyStore
from kvgrove_prompt.bundle import bundle_digest, pack
from kvgrove_prompt.roles import Message
from kvgrove_protocol.control import DocumentPlan, ModelPlan, NamespacePlan, NodePlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, Isolation, Purge

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
LINES = [f"line {number} of a document that many share. " * 3 for number in range(2)]
BODIES = {hashlib.sha256(line.encode()).digest(): line.encode() for line in LINES}


def _bundle(family: str, template: str | None = None) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return pack(write_tokenizer(Path(directory), family, template=template))


class Rig:
    """One gateway's assembly, and a plan with a namespace for each model."""

    def __init__(self, bundles: dict[str, bytes], limits: Limits) -> None:
        self.bundles = {bundle_digest(bundle): bundle for bundle in bundles.values()}
        self.models = [
            ModelPlan(name=name, path="/", generation=b"g" * 32, tokenizer_bundle=bundle_digest(bundle))
            for name, bundle in bundles.items()
        ]
        self.registry = CollectorRegistry()
        self.assembling = Assembling(
            limits,
            bodies=BodyStore(self._texts, max_bytes=1 << 20, timeout_s=60.0),
            bundles=self._fetch,
            registry=self.registry,
            throwaway=lambda: os.urandom(32),
            cacheable_minimum=lambda _model: 0,
        )
        self.issue()

    async def _texts(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return {digest: BODIES[digest] for digest in digests}

    async def _fetch(self, digest: bytes) -> bytes:
        return self.bundles[digest]

    def issue(
        self, *, purge: int = 1, document: int = 0, isolation: Isolation = Isolation.USER, models: int | None = None
    ) -> None:
        """A plan; ``document``: which of the texts the document is."""
        namespaces = [
            NamespacePlan(
                uid=f"uid-{model.name}",
                name=f"team/{model.name}",
                model=model.name,
                isolation=isolation,
                purge=Purge(purge, b"n"),
                fence=Fence(purge, document + 1, 1),
                documents=[DocumentPlan(name="d", version="1", body=list(BODIES)[document], epoch=document + 1)],
            )
            for model in self.models[:models]
        ]
        plan = NodePlan(revision=Revision(1, 1), models=self.models, namespaces=namespaces)
        self.directory = Directory.of(plan)
        self.assembling.follow(self.directory)

    def resolve(
        self, model: str = "chatml", user: str | None = "ann", *, lease: bool = True, documents: Sequence[str] = ()
    ) -> Resolution:
        identity = Identity(key_id="k", caller=Caller(tenant="t", user=user, scopes=()), namespaces=None)
        return self.directory.resolve(identity, f"team/{model}", documents=documents, lease_valid=lease)

    def prepare(self, resolution: Resolution, text: str = "hello there, what is new?") -> Prepared:
        async def prepared() -> Prepared:
            return await self.assembling.preparation.prepare(
                resolution, [Message("system", "Be kind and brief."), Message("user", text)]
            )

        return asyncio.run(prepared())

    def tokens(self, source: str, model: str = "chatml") -> float:
        labels = {"namespace": f"team/{model}", "source": source}
        return self.registry.get_sample_value("kvgrove_assembly_tokens_total", labels) or 0.0

    def known_of(self, resolution: Resolution) -> float:
        before = self.tokens("known")
        self.prepare(resolution)
        return self.tokens("known") - before


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig({"chatml": _bundle("chatml")}, Limits(template_s=60.0))
    yield made
    made.assembling.close()


def test_met_02_known_and_computed_tokens_are_counted_where_all_are_looked_up(rig: Rig) -> None:
    prompt = rig.prepare(rig.resolve()).prompt
    assert (rig.tokens("known"), rig.tokens("computed") > 10) == (0, True)
    computed = rig.tokens("computed")
    assert rig.prepare(rig.resolve()).prompt == prompt
    assert (rig.tokens("known"), rig.tokens("computed")) == (computed, computed)
    assert rig.registry.get_sample_value("kvgrove_assembly_cache_bytes") > 0
    rig.assembling.forget({"team/chatml"})
    assert rig.tokens("known") == 0


def test_i2_another_caller_finds_nothing_and_nobody_else_leaves_anything(rig: Rig) -> None:
    rig.prepare(rig.resolve())
    assert rig.known_of(rig.resolve(user="bob")) == 0
    assert rig.known_of(rig.resolve(user=None)) == 0
    assert rig.known_of(rig.resolve(user=None)) == 0  # a throw-away realm has nothing to come back to
    assert rig.known_of(rig.resolve()) > 0


def test_i3_without_a_lease_nothing_is_met_and_nothing_kept(rig: Rig) -> None:
    rig.prepare(rig.resolve(lease=False))
    assert rig.known_of(rig.resolve()) == 0
    assert rig.known_of(rig.resolve(lease=False)) == 0


def test_i3_a_purge_a_document_and_the_end_of_a_namespace_are_obeyed(rig: Rig) -> None:
    old = rig.resolve(documents=["d"])
    rig.prepare(old)
    assert rig.known_of(old) > 0
    rig.issue(document=1)
    assert rig.known_of(old) < rig.known_of(rig.resolve(documents=["d"])) or rig.known_of(old) == 0
    rig.issue(purge=2)
    assert rig.known_of(rig.resolve()) == 0
    rig.issue(models=0)
    assert rig.registry.get_sample_value("kvgrove_assembly_cache_bytes") == 0


def test_an_erasure_empties_it(rig: Rig) -> None:
    rig.prepare(rig.resolve())
    assert rig.assembling.clear() > 0
    assert rig.assembling.clear() == 0
    assert rig.known_of(rig.resolve()) == 0


def test_iso_15_a_template_that_hangs_costs_its_own_requests_and_no_others() -> None:
    """Its workers are killed and counted; a request for another model is answered meanwhile and afterwards."""
    limits = Limits(template_s=2.0)
    rig = Rig({"chatml": _bundle("chatml"), "hostile": _bundle("chatml", ENDLESS)}, limits)
    try:

        async def both() -> list[Prepared | BaseException]:
            await rig.assembling.tokenizers.get(rig.models[0].tokenizer_bundle)
            prepare = rig.assembling.preparation.prepare
            chat = [Message("user", "x")]
            return await asyncio.gather(
                prepare(rig.resolve("hostile"), chat), prepare(rig.resolve(), chat), return_exceptions=True
            )

        refused, answered = asyncio.run(both())
        assert isinstance(refused, Exception)
        assert getattr(refused, "code", "") in ("template_unsupported", "renderer_lost")
        assert isinstance(answered, Prepared)
        assert (rig.registry.get_sample_value("kvgrove_template_kills_total") or 0) >= 1
        assert rig.prepare(rig.resolve()).prompt.count
    finally:
        rig.assembling.close()


def test_a_template_that_rewrites_history_is_named_without_text(caplog: pytest.LogCaptureFixture) -> None:
    bundle = _bundle("qwen-thinking")
    rig = Rig({"thinking": bundle}, Limits(template_s=60.0))
    try:
        with caplog.at_level(logging.WARNING):
            rig.prepare(rig.resolve("thinking"))
        short = bundle_digest(bundle).hex()[:12]
        assert f"tokenizer bundle {short}: the chat template re-writes earlier turns" in caplog.text
        labels = {"bundle": short, "code": "history_rewritten"}
        assert rig.registry.get_sample_value("kvgrove_template_rewrites_after_tokens", labels) > 0
        assert "kind and brief" not in caplog.text
    finally:
        rig.assembling.close()


def test_pro_07_a_clock_in_the_system_text_is_counted_once_a_second_at_most(rig: Rig) -> None:
    async def ask() -> None:
        for second in range(10, 30):
            chat = [Message("system", f"It is 12:00:{second}."), Message("user", "hi")]
            await rig.assembling.preparation.prepare(rig.resolve(), chat)

    asyncio.run(ask())
    labels = {"namespace": "team/chatml", "kind": "clock"}
    assert 1 <= (rig.registry.get_sample_value("kvgrove_lint_findings_total", labels) or 0) < 20


def test_a_text_that_no_node_takes_is_refused_where_the_plan_sets_no_length(rig: Rig) -> None:
    """By what the nodes report: nothing of it is looked up or computed."""
    rig.models = [msgspec.structs.replace(model, reported_len=64) for model in rig.models]
    rig.issue()
    with pytest.raises(BadRequest) as refused:
        rig.prepare(rig.resolve(), "what is new? " * 200)
    assert (refused.value.code, refused.value.field) == ("context_length_exceeded", "messages")
    assert rig.tokens("computed") == 0
    rig.prepare(rig.resolve(), "what is new?")


def test_iso_15_a_template_among_the_options_is_a_400_that_names_it(rig: Rig) -> None:
    async def ask() -> None:
        await rig.assembling.preparation.prepare(
            rig.resolve(), [Message("user", "x")], options={"chat_template": ENDLESS}
        )

    with pytest.raises(BadRequest) as refused:
        asyncio.run(ask())
    assert refused.value.field == "chat_template_kwargs.chat_template"

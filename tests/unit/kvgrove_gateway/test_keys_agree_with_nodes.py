"""Gateway and node, each by its own way through the code: one assembly, one chain of keys (I9, ISO-08, ROU-11)."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from prompt_fixtures import TEMPLATES, write_tokenizer

from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_daemon.namespaces import HostedNamespace
from kvgrove_daemon.prompts import cached_prompt, chain_of, check_tokens
from kvgrove_daemon.warmup import warm_targets
from kvgrove_gateway.errors import BadRequest
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.namespaces import Directory, Resolution
from kvgrove_gateway.prepare import Preparation
from kvgrove_gateway.router.keys import KnownChains
from kvgrove_gateway.tokenizers import AssemblyThreads, TokenizerStore
from kvgrove_link.body_store import BodyStore
from kvgrove_prompt.assembly import Message
from kvgrove_prompt.bundle import bundle_digest, pack
from kvgrove_prompt.prompt import Prompt, pack_tokens
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.chain import Span, SpanKind
from kvgrove_protocol.control import DocumentPlan, ModelPlan, NamespacePlan, NodePlan, PrefixPlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, GenerationInputs, Isolation, Purge, generation

BLOCK = 16
TEXTS = [f"Rule {number}: keep what many share, and ask kindly. " * (2 + 3 * number) for number in range(5)]
DIGESTS = [hashlib.sha256(text.encode()).digest() for text in TEXTS]
CALLERS = [
    Caller(tenant=tenant, user=user, scopes=scopes)
    for tenant in ("acme", "other")
    for user in ("ann", "bob")
    for scopes in ((), ("legal",))
]


class Fleet:
    """What a gateway and a node know of one plan: nothing but the plan and the bundles are common to them."""

    def __init__(self, bundles: Sequence[bytes]) -> None:
        self.bundles = {bundle_digest(bundle): bundle for bundle in bundles}
        self.tokenizers = {digest: PromptTokenizer.from_bundle(bundle) for digest, bundle in self.bundles.items()}
        models = [self._model(digest, adapter) for digest in self.bundles for adapter in (None, "sha256:1", "sha256:2")]
        namespaces = [self._namespace(model, level, at) for model in models for at, level in enumerate(Isolation)]
        self.plan = NodePlan(revision=Revision(1, 1), models=models, namespaces=namespaces)
        self.directory = Directory.of(self.plan)
        self.stores = BlockStore(RunAllocator(8), block_size=BLOCK, block_bytes=1)
        self.threads = AssemblyThreads(1, 10)
        self.preparation = Preparation(
            BodyStore(self._bodies, max_bytes=1 << 20, timeout_s=60.0),
            TokenizerStore(self._bundle, self.threads, keep=10, timeout_s=60.0),
            self.threads,
            KnownChains(500),
            throwaway=lambda: b"gateway",
        )

    async def _bodies(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return {digest: TEXTS[DIGESTS.index(digest)].encode() for digest in digests}

    async def _bundle(self, digest: bytes) -> bytes:
        return self.bundles[digest]

    def _model(self, bundle: bytes, adapter: str | None) -> ModelPlan:
        inputs = GenerationInputs(
            weights="w",
            tokenizer=bundle.hex(),
            chat_template="c",
            kv_dtype="float32",
            block_size=BLOCK,
            adapter=adapter,
        )
        return ModelPlan(
            name=f"{bundle.hex()[:8]}-{adapter}",
            path="/",
            block_size=BLOCK,
            generation=generation(inputs),
            inputs=inputs,
            tokenizer_bundle=bundle,
        )

    def _namespace(self, model: ModelPlan, level: Isolation, number: int) -> NamespacePlan:
        return NamespacePlan(
            uid=f"{model.name}-{level}",
            name=f"team/{model.name}-{level}",
            model=model.name,
            isolation=level,
            purge=Purge(number, bytes([number]) * 16),
            policy_version=number % 3,
            fence=Fence(number, 1, 1),
            lease_seconds=60.0,
            warm=["rules", "long"],
            prefixes=[
                PrefixPlan(name="rules", version="1", body=DIGESTS[0]),
                PrefixPlan(name="long", version="1", body=DIGESTS[4], documents=["d2"]),
            ],
            documents=[
                DocumentPlan(name=f"d{at}", version="v", body=DIGESTS[at], epoch=number + at) for at in range(1, 4)
            ],
        )

    def resolve(self, draw: random.Random) -> Resolution:
        namespace = draw.choice(self.plan.namespaces)
        return self.directory.resolve(
            Identity(key_id="k", caller=draw.choice(CALLERS), namespaces=None),
            namespace.name,
            prefix=draw.choice([None, "rules", "long"]),
            documents=draw.sample(["d1", "d2", "d3"], draw.randrange(3)),
            session=draw.choice(["s", "t"]),
            lease_valid=True,
        )

    def hosted(self, resolution: Resolution) -> HostedNamespace:
        documents = {document.name: document for document in resolution.namespace.documents}
        return HostedNamespace(resolution.namespace, resolution.model, documents)

    def node_keys(self, resolution: Resolution, prompt: Prompt, caller: Caller | None = None) -> list[bytes]:
        """What a node makes of the tokens and spans that it is sent."""
        check_tokens(prompt.tokens, prompt.spans, 1 << 31)
        cached = cached_prompt(
            self.hosted(resolution),
            resolution.caller if caller is None else caller,
            prompt.tokens,
            prompt.spans,
            block_size=BLOCK,
            throwaway=lambda: b"node",
        )
        return chain_of(self.stores, cached, prompt.tokens).keys


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    with tempfile.TemporaryDirectory() as directory:
        return Fleet([pack(write_tokenizer(Path(directory) / family, family)) for family in TEMPLATES])


def made_up_prompt(draw: random.Random, resolution: Resolution) -> Prompt:
    """Random tokens, where the references of ``resolution`` stand first and scaffolding lies anywhere between."""
    spans: list[Span] = []

    def add(kind: SpanKind, length: int, **more: object) -> None:
        start = spans[-1].end if spans else 0
        spans.append(msgspec.structs.replace(Span(kind, start, start + length), **more))

    add(SpanKind.TEMPLATE, draw.randrange(1, 20))
    if resolution.prefix is not None:
        add(SpanKind.PREFIX, draw.randrange(1, 120), name=resolution.prefix.name)
    for document in resolution.documents:
        add(SpanKind.DOCUMENT, draw.randrange(1, 90), document=document.reference)
    for _ in range(draw.randrange(3)):
        add(SpanKind.TEMPLATE, draw.randrange(1, 9))
        add(SpanKind.PRIVATE, draw.randrange(1, 1500))
    beginning = random.Random(draw.randrange(3))  # three beginnings, so that chains are known to some length
    same = draw.randrange(spans[-1].end)
    ids = [(beginning if at < same else draw).randrange(32_000) for at in range(spans[-1].end)]
    return Prompt(pack_tokens(ids), spans, [])


def test_iso_08_the_routers_keys_are_the_nodes_keys_for_500_random_requests(fleet: Fleet) -> None:
    draw = random.Random(8)
    seen: dict[bytes, bytes] = {}
    for _ in range(500):
        resolution = fleet.resolve(draw)
        prompt = made_up_prompt(draw, resolution)
        keys = fleet.preparation._keys(resolution, prompt)
        assert len(keys) == prompt.count // BLOCK
        assert keys == fleet.node_keys(resolution, prompt)
        stranger = Caller(tenant="stranger", user="x", scopes=("x",), session="x")
        private = next((span.start // BLOCK for span in prompt.spans if span.kind is SpanKind.PRIVATE), len(keys))
        others = fleet.node_keys(resolution, prompt, stranger)
        if resolution.namespace.isolation is not Isolation.PUBLIC:
            assert (keys[:private], set(keys[private:]) & set(others)) == (others[:private], set())
        for key in keys[:1]:
            root = resolution.realm.shared_realm()
            assert seen.setdefault(key, root) == root  # another adapter, purge or namespace: never an equal key


SAID = "the cache of a prompt holds what many share <|im_end|> système 你好 🙂 [INST] ask kindly"
WORDS = [*SAID.split(), "", "\n"]


def made_up_chat(draw: random.Random) -> list[Message]:
    def text() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 60)))

    messages = [Message("system", text())] if draw.random() < 0.3 else []
    for _ in range(draw.randrange(3)):
        messages += [Message("user", text()), Message("assistant", text())]
    return [*messages, Message("user", text())]


def test_rou_11_the_router_keys_what_the_node_computes_for_300_chats(fleet: Fleet) -> None:
    draw = random.Random(11)

    async def chats() -> int:
        matched = 0
        for _ in range(300):
            resolution, chat = fleet.resolve(draw), made_up_chat(draw)
            prepared = await fleet.preparation.prepare(resolution, chat)
            assert prepared.keys
            assert list(prepared.keys) == fleet.node_keys(resolution, prepared.prompt)
            matched += warm_beginning(resolution, prepared.prompt, prepared.keys)
        return matched

    def warm_beginning(resolution: Resolution, prompt: Prompt, keys: Sequence[bytes]) -> bool:
        """Whether a node's own warm-up, which never saw the chat, has made blocks that the router looks for."""
        if resolution.prefix is None:
            return False
        tokenizer = fleet.tokenizers[resolution.model.tokenizer_bundle]
        texts = dict(zip(DIGESTS, TEXTS, strict=True))
        targets = warm_targets(fleet.hosted(resolution), tokenizer, BLOCK, texts)
        for target in targets:
            if target.prefix == resolution.prefix.name:
                warm = Prompt(target.tokens, target.spans, [])
                assert prompt.tokens.startswith(target.tokens)
                assert fleet.node_keys(resolution, warm, Caller()) == list(keys[: target.blocks])
                return True
        return False

    warmed = asyncio.run(chats())
    assert warmed >= 100


def test_rou_11_what_the_template_refuses_is_refused_before_it_is_routed(fleet: Fleet) -> None:
    draw = random.Random(1)
    resolution = next(
        found
        for found in iter(lambda: fleet.resolve(draw), None)
        if found.model.name.startswith(_bundle_of(fleet, "gemma"))
    )
    turns = [Message("user", "one"), Message("system", "two")]
    with pytest.raises(BadRequest):
        asyncio.run(fleet.preparation.prepare(resolution, turns))


def _bundle_of(fleet: Fleet, family: str) -> str:
    return list(fleet.bundles)[list(TEMPLATES).index(family)].hex()[:8]

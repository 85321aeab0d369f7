"""A resolved request -> the prompt to send and the keys to route by.

The texts and the tokenizer are waited for on the loop; rendering, tokenising and keying run in the assembly threads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgrove_gateway.account import Mark
from kvgrove_gateway.ask import Breakpoint
from kvgrove_gateway.breakpoints import marks
from kvgrove_gateway.errors import BadRequest, Unavailable
from kvgrove_gateway.fitting import check_fits, texts_of
from kvgrove_gateway.linting import TrafficLinter
from kvgrove_gateway.namespaces import Resolution
from kvgrove_gateway.router.keys import KnownChains
from kvgrove_gateway.tokenizers import AssemblyThreads, TokenizerStore
from kvgrove_link.body_store import BodiesMissing, BodyStore
from kvgrove_prompt.assembly import DocumentBody, Message, PrefixBody, assemble
from kvgrove_prompt.assembly_cache import AssemblyCache, Scope
from kvgrove_prompt.errors import RendererLost
from kvgrove_prompt.prompt import Prompt
from kvgrove_prompt.raw import raw_prompt
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_prompt.units import Tokenise
from kvgrove_protocol.chain import SpanKind, folds
from kvgrove_protocol.control import NamespacePlan
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.identity import RealmInputs


@dataclass(frozen=True)
class Prepared:
    prompt: Prompt
    tokenizer: PromptTokenizer
    keys: Sequence[bytes]
    """Block keys as the nodes compute them; empty where the request is served cold."""
    marks: tuple[Mark, ...] = ()
    """The caller's cache breakpoints."""

    @property
    def declared_tokens(self) -> int:
        """Leading tokens that every caller's prompt may begin with."""
        spans = self.prompt.spans
        return next((span.start for span in spans if span.kind is SpanKind.PRIVATE), self.prompt.count)


class Preparation:
    """Turns resolutions into prompts. On the event loop; the work is done in ``threads``."""

    def __init__(
        self,
        bodies: BodyStore,
        tokenizers: TokenizerStore,
        threads: AssemblyThreads,
        known: KnownChains,
        *,
        throwaway: Callable[[], bytes],
        cacheable_minimum: Callable[[str], int] = lambda _model: 0,
        cache: AssemblyCache | None = None,
        linter: TrafficLinter | None = None,
    ) -> None:
        """``throwaway``: fresh random bytes for realms that nobody shares. ``cache``: tokens of known texts.
        ``linter``: looks at what ought to be stable in requests.

        ``cacheable_minimum``: by a model's name, tokens below which a prefix that a caller marks does not count as one.
        """
        self._cacheable_minimum = cacheable_minimum
        self._bodies = bodies
        self._tokenizers = tokenizers
        self._threads = threads
        self._known = known
        self._throwaway = throwaway
        self._cache = cache
        self._linter = linter

    async def prepare(
        self,
        resolution: Resolution,
        messages: Sequence[Message],
        *,
        open_ended: bool = False,
        breakpoints: Sequence[Breakpoint] = (),
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Prepared:
        """The prompt of a chat. ``tools``: as OpenAI writes them; ``options``: switches for the chat template.

        Raises BadRequest for messages the template refuses, Unavailable or Busy where parts cannot be had now.
        """
        tokenizer = await self._tokenizer(resolution)
        texts = await self._texts(resolution)
        prefix = resolution.prefix
        prefix_body = None if prefix is None else PrefixBody(name=prefix.name, text=texts[prefix.body])
        documents = [
            DocumentBody(ref=each.reference, name=each.name, version=each.version, text=texts[each.body])
            for each in resolution.documents
        ]

        def assembled() -> Prompt:
            check_fits(tokenizer, texts_of(messages, tools), resolution.model.known_len, "messages")
            if self._linter is not None:
                self._linter.look(resolution.namespace.uid, messages, tools)
            return assemble(
                tokenizer,
                messages,
                tools=tools,
                options=options,
                prefix=prefix_body,
                documents=documents,
                open_ended=open_ended,
                texts=self._known_texts(resolution, tokenizer),
            )

        return await self._in_thread(resolution, tokenizer, assembled, breakpoints)

    async def prepare_raw(self, resolution: Resolution, content: str | Sequence[int]) -> Prepared:
        """The same for a prompt that no template is put over: a text, or token ids."""
        tokenizer = await self._tokenizer(resolution)

        def assembled() -> Prompt:
            own = [content] if isinstance(content, str) else []
            check_fits(tokenizer, own, resolution.model.known_len, "prompt")
            return raw_prompt(tokenizer, content)

        return await self._in_thread(resolution, tokenizer, assembled)

    async def _in_thread(
        self,
        resolution: Resolution,
        tokenizer: PromptTokenizer,
        assembled: Callable[[], Prompt],
        breakpoints: Sequence[Breakpoint] = (),
    ) -> Prepared:
        model = resolution.model
        minimum = self._cacheable_minimum(model.name)

        def build() -> Prepared:
            prompt = assembled()
            found = marks(breakpoints, prompt, tokenizer, block_size=model.block_size, minimum=minimum)
            return Prepared(prompt, tokenizer, self._keys(resolution, prompt), found)

        try:
            return await self._threads.run(build)
        except RendererLost:
            raise Unavailable("The prompt could not be rendered: try again.", code=RendererLost.code) from None
        except Terminal as error:
            if isinstance(error, BadRequest):
                raise
            raise BadRequest(
                f"The prompt cannot be assembled: {error.message}.", field=error.field, code=error.code
            ) from None

    async def _tokenizer(self, resolution: Resolution) -> PromptTokenizer:
        bundle = resolution.model.tokenizer_bundle
        if not bundle:
            raise Unavailable("The model is not ready yet: try again later.", code="model_not_ready")
        return await self._tokenizers.get(bundle)

    async def _texts(self, resolution: Resolution) -> Mapping[bytes, str]:
        try:
            return await self._bodies.get(resolution.body_digests())
        except BodiesMissing:
            raise Unavailable("A referenced text is not available yet: try again.", code="body_unavailable") from None

    def _known_texts(self, resolution: Resolution, tokenizer: PromptTokenizer) -> Tokenise | None:
        """Tokenises with the memory of what this caller sent before; None where nothing may be remembered.

        Like any tier it is used under a freshness lease only, and a caller without the field that the isolation level
        asks for has nothing to come back to.
        """
        namespace = resolution.namespace
        if self._cache is None or resolution.fence is None or namespace.suspended:
            return None
        fresh: list[bytes] = []

        def throwaway() -> bytes:
            fresh.append(self._throwaway())
            return fresh[-1]

        realm = timeless_realm(namespace)
        private = realm.private_realm(namespace.isolation, resolution.caller, throwaway=throwaway)
        if fresh:
            return None
        bundle = resolution.model.tokenizer_bundle
        return self._cache.texts(
            tokenizer,
            Scope(namespace=namespace.uid, realm=private, bundle=bundle, version=realm.shared_realm()),
        )

    def _keys(self, resolution: Resolution, prompt: Prompt) -> list[bytes]:
        if resolution.fence is None or resolution.namespace.suspended or resolution.scope_denied:
            return []
        realm = resolution.realm
        private = realm.private_realm(resolution.namespace.isolation, resolution.caller, throwaway=self._throwaway)
        block_size = resolution.model.block_size
        return self._known.keys(
            realm.shared_realm(), prompt.tokens, folds(prompt.spans, private, block_size), block_size=block_size
        )


def timeless_realm(namespace: NamespacePlan) -> RealmInputs:
    """The namespace's realm without its generation: the tokens of a text depend on the tokenizer alone, so they
    outlive a change of weights."""
    return RealmInputs(
        generation=b"",
        namespace_uid=namespace.uid,
        purge=namespace.purge,
        policy_version=namespace.policy_version,
    )

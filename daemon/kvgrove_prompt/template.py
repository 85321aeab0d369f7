"""A model's chat template: a conversation in, pieces of text out that say whose they are.

Only the model's own template is ever rendered, never one from a request. Rendering is deterministic but for the
clock (``strftime_now``), which is read once a render. Where it runs is the renderer's business: here, or in a process
that is killed when it takes too long (`render_pool`).
Knows roles and texts; documents, prefixes and tokens are the callers' business.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

from kvgrove_prompt.conversation import Conversation
from kvgrove_prompt.policy import RolePolicy, policy_of
from kvgrove_prompt.rendering import Job, render
from kvgrove_prompt.sandbox import MAX_RENDERED_CHARS, Sandbox
from kvgrove_prompt.seams import Piece


def new_nonce() -> str:
    """128 random bits as lower-case hex."""
    return secrets.token_hex(16)


def local_now() -> datetime:
    return datetime.now(UTC).astimezone()


class Renderer(Protocol):
    """Where templates are rendered. Safe to share between threads."""

    def prepare(self, source: str, max_chars: int) -> Callable[[Job], list[Piece]]:
        """A function that renders ``source`` as `rendering.render` does; both raise TemplateUnsupported."""


class InProcess:
    """Renders in the calling thread: for templates that are trusted, and for tests."""

    def prepare(self, source: str, max_chars: int) -> Callable[[Job], list[Piece]]:
        sandbox = Sandbox(source, max_chars=max_chars)
        return lambda job: render(sandbox, job)


class ChatTemplate:
    """A compiled chat template. Raises TemplateUnsupported if it does not compile."""

    def __init__(
        self,
        source: str,
        *,
        named_tokens: Mapping[str, str],
        markers: Sequence[str] = (),
        nonce: Callable[[], str] = new_nonce,
        now: Callable[[], datetime] = local_now,
        max_chars: int = MAX_RENDERED_CHARS,
        renderer: Renderer | None = None,
    ) -> None:
        """``markers``: the tokenizer's control markers. ``renderer``: in the calling thread if None."""
        self._source = source
        self._render = (renderer or InProcess()).prepare(source, max_chars)
        self._named_tokens = dict(named_tokens)
        self._markers = list(markers)
        self._nonce = nonce
        self._now = now

    @property
    def source(self) -> str:
        """The template's own text."""
        return self._source

    def render(self, conversation: Conversation) -> list[Piece]:
        """The prompt as pieces that add up to what the template renders; raises as `rendering.render` does."""
        return self._render(self._job(conversation, traced=True))

    def render_bare(self, conversation: Conversation) -> str:
        """What the template renders, untraced."""
        return "".join(piece.text for piece in self._render(self._job(conversation, traced=False)))

    @cached_property
    def policy(self) -> RolePolicy:
        """What it takes; raises TemplateUnsupported if it declares what is not understood."""
        return policy_of(self, self._source)

    def _job(self, conversation: Conversation, *, traced: bool) -> Job:
        return Job(
            conversation=conversation,
            nonce=self._nonce(),
            now=self._now().isoformat(),
            named_tokens=self._named_tokens,
            markers=self._markers,
            traced=traced,
        )

"""OpenAI's completion request: raw prompts, past any chat template.

A prompt is a text, token ids, or a list of either. Control markers in a text are control tokens here: the whole prompt
is the caller's own and private to their realm, and a prompt that somebody has rendered needs them.

``echo`` with ``logprobs`` asks for the log probabilities of the prompt's own tokens. Reused blocks have none: the
prompt is computed from its first token on, and ``cached_tokens`` is 0 (COR-11).
"""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from kvgrove_gateway.api.body import MAX_CHOICES, MAX_NEW_TOKENS, check, drop_unsupported, read_object
from kvgrove_gateway.api.openai import Generation
from kvgrove_gateway.ask import Ask, RawPrompt

NEUTRAL: dict[str, tuple[Any, ...]] = {"best_of": (1,), "logit_bias": ({},), "suffix": ("",)}
UNSUPPORTED = frozenset({"prompt_logprobs"})

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""
MAX_PROMPT_TOKENS = 1 << 22
"""Beyond what one message to a node holds."""

Text = Annotated[str, StringConstraints(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]


def _as_prompts(value: Any) -> Any:
    """The four shapes as one: a list of texts or of token lists."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        one = value and all(type(each) is int for each in value)
        return [value] if one else value
    raise PydanticCustomError("prompt_type", "Input should be a string, token ids, or a list of either")


Prompts = Annotated[
    list[Text | Tokens],
    BeforeValidator(_as_prompts, json_schema_input_type=Text | Tokens | list[Text] | list[Tokens]),
    Field(min_length=1, max_length=MAX_CHOICES),
]


class CompletionRequest(Generation):
    prompt: Prompts
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=0, le=MAX_NEW_TOKENS)
    """0 only with ``echo``: the prompt and nothing more."""
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise PydanticCustomError("rule_nothing", "max_tokens: 0 is only allowed with 'echo': true")
        if len(self.prompt) * self.n > MAX_CHOICES:
            raise PydanticCustomError(
                "rule_choices", f"n: prompts times n is at most {MAX_CHOICES}, send several requests"
            )
        if self.kvgrove.prefix is not None or self.kvgrove.documents:
            raise PydanticCustomError(
                "rule_raw", "kvgrove: a raw prompt takes no declared texts, ask for a chat completion"
            )
        return self

    def asks(self) -> list[Ask]:
        """One for each prompt."""
        return [
            Ask(
                model=self.model,
                prompt=RawPrompt(each if isinstance(each, str) else tuple(each)),
                prompt_field="prompt",
                limit=self.max_tokens,
                limit_field="max_tokens",
                sampling=self.sampling(self.logprobs),
                stop=self.stop,
                prompt_logprobs=self.logprobs if self.echo else None,
                session=self.kvgrove.session,
                reasons=self.kvgrove.reasons,
            )
            for each in self.prompt
        ]


def parse_completion(body: bytes) -> CompletionRequest:
    """A checked request; raises BadRequest naming the first field that is off, never quoting its value."""
    fields = read_object(body)
    drop_unsupported(fields, UNSUPPORTED, NEUTRAL)
    return check(CompletionRequest, fields)

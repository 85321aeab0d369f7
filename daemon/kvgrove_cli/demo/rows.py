"""One request of the demo, as the official OpenAI client saw it."""

import time

import msgspec
from openai import APIError, AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from kvgrove_cli.errors import FleetProblem

MAX_TOKENS = 16


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table, and of ``demo.json``."""

    name: str
    prompt_tokens: int
    reused_tokens: int
    miss_reasons: dict[str, int]
    ttft_s: float
    """Seconds from sending the request to the first piece of the answer, measured by the client."""
    node: str

    @property
    def adds_up(self) -> bool:
        return self.reused_tokens + sum(self.miss_reasons.values()) == self.prompt_tokens


async def ask(client: AsyncOpenAI, name: str, *, model: str, prefix: str, question: str) -> tuple[Row, str]:
    """Send one streamed chat request that names a declared prefix; its row, and the answer's text."""
    sent = time.monotonic()
    first: float | None = None
    pieces: list[str] = []
    usage: ChatCompletionChunk | None = None
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"kvgrove": {"prefix": prefix}},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                first = first if first is not None else time.monotonic() - sent
                pieces.append(chunk.choices[0].delta.content)
            if chunk.usage is not None:
                usage = chunk
    except APIError as error:
        raise FleetProblem(f"{name}: the gateway answered with an error: {error.message}") from None
    if first is None or usage is None or usage.usage is None:
        raise FleetProblem(f"{name}: the answer ended without text or usage")
    extension = (usage.model_extra or {}).get("kvgrove", {})
    details = usage.usage.prompt_tokens_details
    row = Row(
        name=name,
        prompt_tokens=usage.usage.prompt_tokens,
        reused_tokens=(details.cached_tokens or 0) if details is not None else 0,
        miss_reasons=extension.get("missed", {}),
        ttft_s=round(first, 4),
        node=extension.get("node", ""),
    )
    return row, "".join(pieces)

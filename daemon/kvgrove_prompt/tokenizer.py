"""Text <-> tokens of one model, with two ways in: as a template's own text, or as somebody's words.

In a template's text control markers (``<|im_end|>``) are control tokens. In anybody's words they are ordinary text
that survives a decode, so that no message, document or prefix can end its own turn. Neither way adds a BOS: the
template is its one owner (PRO-01).

Every text is encoded as the middle of a text: families that put a space before a text's first word (SentencePiece)
would otherwise invent one at each seam. Only the very start of a prompt gets the family's own treatment.
Knows nothing of roles, spans or caches.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise
from typing import Any, NamedTuple

from tokenizers import AddedToken, Encoding, Tokenizer

from kvgrove_prompt.bundle import Bundle, unpack
from kvgrove_prompt.decoding import StreamDecoder
from kvgrove_prompt.errors import TokenizerUnsupported
from kvgrove_prompt.template import ChatTemplate, Renderer, new_nonce


class Cut(NamedTuple):
    """Where a part of a text begins: at ``token``, which also holds the end of what is before if ``shared``."""

    token: int
    shared: bool


class PromptTokenizer:
    """A model's tokenizer and chat template, immutable once made; safe to share between threads."""

    def __init__(
        self, bundle: Bundle, *, nonce: Callable[[], str] = new_nonce, renderer: Renderer | None = None
    ) -> None:
        """``nonce``: source of unguessable text (128 bits or more a call) for the template's seams.

        ``renderer``: where the chat template is rendered; None: in the calling thread, unbounded in time.
        """
        native = _load(bundle)
        fields: dict[str, Any] = json.loads(native.to_str())
        inner, edited = _without_leading_space(fields)
        self._control = Tokenizer.from_str(json.dumps(inner)) if edited else native
        self._text = _blind_to_markers(inner)
        self._start_text = _blind_to_markers(fields) if edited else self._text
        self._start = native
        self._marker_ids = _marker_ids(inner)
        self._markers = {token["content"]: token["id"] for token in inner["added_tokens"] if _is_marker(token)}
        self._pattern = _marker_pattern(inner)
        self._special_ids = frozenset(token["id"] for token in fields["added_tokens"] if token["special"])
        self._eos_ids = _eos_ids(bundle, native)
        self.template = (
            None
            if bundle.chat_template is None
            else ChatTemplate(
                bundle.chat_template,
                named_tokens=bundle.named_tokens,
                markers=list(self._markers),
                nonce=nonce,
                renderer=renderer,
            )
        )
        """The model's chat template; None where it has none."""

    @classmethod
    def from_bundle(cls, packed: bytes, *, renderer: Renderer | None = None) -> "PromptTokenizer":
        """Raises Malformed for bytes that are no bundle, TokenizerUnsupported or TemplateUnsupported for what cannot
        be used."""
        return cls(unpack(packed), renderer=renderer)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, ascending."""
        return self._eos_ids

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added ones included."""
        return self._control.get_vocab_size(with_added_tokens=True)

    @cached_property
    def leading_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts before a raw text, a BOS as a rule; a chat template brings its own."""
        bare = self._start.encode("a", add_special_tokens=False).ids
        whole = self._start.encode("a", add_special_tokens=True).ids
        return tuple(whole[: whole.index(bare[0])]) if bare and bare[0] in whole else ()

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens that are no part of an answer's text."""
        return self._special_ids

    @property
    def markers(self) -> list[str]:
        """Control markers, as texts."""
        return list(self._markers)

    def encode_control(self, text: str, *, start: bool = False) -> list[int]:
        """Tokens of a text in which control markers are meant: they become control tokens.

        ``start``: the text begins the prompt.
        """
        return _encode(self._start if start else self._control, text).ids

    def split_control(self, text: str) -> list[str | int]:
        """A template's own text as ordinary texts (never empty) and control tokens, in order.

        A marker that swallows the blanks beside it does so within ``text``.
        """
        if self._pattern is None:
            return [text] if text else []
        found: list[str | int] = []
        position = 0
        for match in self._pattern.finditer(text):
            if match.start() > position:
                found.append(text[position : match.start()])
            found.append(self._markers[match[0] if match[0] in self._markers else match[0].strip()])
            position = match.end()
        if position < len(text):
            found.append(text[position:])
        return found

    def encode_text(self, text: str) -> list[int]:
        """Tokens of somebody's words: control markers become ordinary tokens.

        Raises TokenizerUnsupported if the tokenizer makes a control token of a single character.
        """
        encoding = _encode(self._text, text)
        ids = encoding.ids
        return ids if self._marker_ids.isdisjoint(ids) else self._cut(text, encoding)

    def encode_parts(self, parts: Sequence[str], *, start: bool = False) -> tuple[list[int], list[Cut]]:
        """Tokens of the text that ``parts`` add up to, markers being ordinary text, and where each part but the first
        begins in them.

        ``start``: the text begins the prompt, where some families treat it in their own way.
        """
        encoding = _encode(self._start_text if start else self._text, "".join(parts))
        ids = encoding.ids
        if not self._marker_ids.isdisjoint(ids):  # rare: each on its own, so that what is cut lies within one
            apart = [self.encode_text(part) for part in parts]
            ends = accumulate(len(each) for each in apart)
            return list(chain.from_iterable(apart)), [Cut(end, False) for end in islice(ends, len(parts) - 1)]
        begins = accumulate(len(part) for part in parts)
        whole = sum(len(part) for part in parts)
        return ids, [_cut_at(encoding, begin, whole, len(ids)) for begin in islice(begins, len(parts) - 1)]

    def _cut(self, text: str, encoding: Encoding) -> list[int]:
        """Some models (Unigram; BPE with ignore_merges) hold markers in their own vocabulary too: cut them in two."""
        cuts = [0]
        for token_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._marker_ids:
                if end - begin < 2:
                    raise TokenizerUnsupported(
                        f"the tokenizer makes control token {token_id} out of plain text: it cannot be used safely",
                        field="tokenizer.json",
                    )
                cuts.append(begin + 1)
        cuts.append(len(text))
        return [token_id for begin, end in pairwise(cuts) for token_id in self.encode_text(text[begin:end])]

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of ``ids``; with ``skip_special`` without special tokens, as an answer is shown."""
        return self._control.decode(ids, skip_special_tokens=skip_special)

    def stream(self) -> StreamDecoder:
        """A decoder for the tokens of one answer, special tokens left out."""
        return StreamDecoder(lambda ids: self.decode(ids, skip_special=True))


def _encode(tokenizer: Tokenizer, text: str) -> Encoding:
    """As a batch of one: unlike ``encode``, that lets go of the interpreter's lock, so that one caller's long text does
    not stop everybody else's event loop (PER-02)."""
    encoding: Encoding = tokenizer.encode_batch([text], add_special_tokens=False)[0]
    return encoding


def _cut_at(encoding: Encoding, begin: int, whole: int, count: int) -> Cut:
    """The cut at character ``begin`` of ``whole``. Characters that the normaliser drops are in no token."""
    for position in range(begin, whole):
        token = encoding.char_to_token(position)
        characters = None if token is None else encoding.token_to_chars(token)
        if token is not None and characters is not None:
            return Cut(token, characters[0] < begin)
    return Cut(count, False)


def _blind_to_markers(fields: dict[str, Any]) -> Tokenizer:
    """The same tokenizer, to which every control marker is text."""
    tokenizer = Tokenizer.from_str(json.dumps(_all_markers_special(fields)))
    tokenizer.encode_special_tokens = True  # matches no special token
    return tokenizer


def _marker_pattern(fields: dict[str, Any]) -> re.Pattern[str] | None:
    """Finds markers as the tokenizer does: leftmost, then longest, with the blanks that they swallow."""
    tokens = sorted(
        (token for token in fields["added_tokens"] if _is_marker(token)),
        key=lambda token: len(token["content"]),
        reverse=True,
    )
    patterns = []
    for token in tokens:
        pattern = re.escape(token["content"])
        if token["single_word"]:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        blanks_before, blanks_after = (r"\s*" if token[side] else "" for side in ("lstrip", "rstrip"))
        patterns.append(blanks_before + pattern + blanks_after)
    return re.compile("|".join(patterns)) if patterns else None


def _load(bundle: Bundle) -> Tokenizer:
    """The tokenizer as transformers would load it; padding and truncation that were saved with it are dropped."""
    try:
        tokenizer = Tokenizer.from_buffer(bundle.tokenizer_json)
    except ValueError as error:  # what the Rust side raises for anything it cannot parse
        raise TokenizerUnsupported(f"tokenizer.json cannot be read: {error}", field="tokenizer.json") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for token in bundle.added_tokens:
        if tokenizer.token_to_id(token.content) is None:
            tokenizer.add_tokens([_added_token(token.content, **_flags(token))])
        if tokenizer.token_to_id(token.content) != token.id:
            raise TokenizerUnsupported(
                f"tokenizer_config.json gives an added token the id {token.id}, tokenizer.json "
                f"{tokenizer.token_to_id(token.content)}: make the two files agree",
                field="added_tokens_decoder",
            )
    return tokenizer


def _flags(token: Any) -> dict[str, bool]:
    names = ("special", "normalized", "lstrip", "rstrip", "single_word")
    return {name: getattr(token, name) for name in names}


def _added_token(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, **flags)


def _is_marker(added_token: dict[str, Any]) -> bool:
    """Runs of spaces are added tokens in some families (GPT-NeoX, Phi): vocabulary, not control."""
    content: str = added_token["content"]
    return not content.isspace()


def _all_markers_special(fields: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer with every marker (``<think>`` and ``<tool_call>`` too) marked special; ids stay."""
    tokens = [token | {"special": _is_marker(token)} for token in fields["added_tokens"]]
    return fields | {"added_tokens": tokens}


def _marker_ids(fields: dict[str, Any]) -> frozenset[int]:
    """Ids that no plain text may become; the unknown token is what plain text becomes by design."""
    model = fields["model"]
    unknown = {model.get("unk_token"), _unigram_unknown(model)}
    return frozenset(
        token["id"] for token in fields["added_tokens"] if _is_marker(token) and token["content"] not in unknown
    )


def _unigram_unknown(model: dict[str, Any]) -> str | None:
    unk_id = model.get("unk_id")
    if unk_id is None:
        return None
    piece: str = model["vocab"][unk_id][0]
    return piece


def _eos_ids(bundle: Bundle, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids = set(bundle.eos_ids)
    named = tokenizer.token_to_id(bundle.named_tokens.get("eos_token", ""))
    return tuple(sorted(ids if named is None else ids | {named}))


def _without_leading_space(fields: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The tokenizer without the space that some families put before a text, and without its removal on decoding.

    Returns it and whether anything had to change.
    """
    edited = dict(fields)
    edited["normalizer"] = _edit(fields["normalizer"], "normalizers", lambda part: part["type"] != "Prepend")
    edited["pre_tokenizer"] = _edit(fields["pre_tokenizer"], "pretokenizers", None)
    edited["decoder"] = _edit(fields["decoder"], "decoders", lambda part: part["type"] != "Strip")
    return edited, edited != fields


def _edit(
    part: dict[str, Any] | None, children: str, keep: Callable[[dict[str, Any]], bool] | None
) -> dict[str, Any] | None:
    """``part`` of a pipeline without the steps that ``keep`` turns down, and with leading spaces switched off."""
    if part is None or (keep is not None and not keep(part)):
        return None
    if part["type"] == "Sequence":
        kept = [edited for child in part[children] if (edited := _edit(child, children, keep)) is not None]
        return part | {children: kept}
    if part["type"] == "Metaspace":
        return part | {"prepend_scheme": "never"}
    if part["type"] == "ByteLevel" and children == "pretokenizers":
        return part | {"add_prefix_space": False}
    return part

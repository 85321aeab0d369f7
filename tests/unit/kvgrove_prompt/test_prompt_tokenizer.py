"""Control markers in anybody's words are words; a stream of tokens is a stream of whole characters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from prompt_fixtures import EXTRA_MARKERS, MARKERS, byte_level_json, prompt_tokenizer, write_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from kvgrove_prompt.assembly import Message, assemble
from kvgrove_prompt.bundle import pack
from kvgrove_prompt.decoding import MAX_HELD_TOKENS
from kvgrove_prompt.errors import TokenizerUnsupported
from kvgrove_prompt.prompt import pack_tokens, unpack_tokens
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.errors import Malformed

FAMILIES = pytest.mark.parametrize("sentencepiece", [False, True])


@FAMILIES
@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_control_only_in_the_templates_own_text(marker: str, sentencepiece: bool) -> None:
    if sentencepiece and "▁" in marker:
        pytest.skip("there this character is how a blank is written: the text does not survive, marker or not")
    tokenizer = prompt_tokenizer(sentencepiece=sentencepiece)
    [control] = tokenizer.encode_control(marker)
    for text in (marker, f"a{marker}b", f" {marker} ", marker * 3):
        words = tokenizer.encode_text(text)
        assert control not in words
        assert tokenizer.decode(words) == text


@pytest.mark.parametrize("marker", [*MARKERS, *EXTRA_MARKERS])
def test_a_marker_in_words_reads_as_if_it_were_none(marker: str) -> None:
    fields = json.loads(byte_level_json())
    fields["added_tokens"] = []
    ignorant = Tokenizer.from_str(json.dumps(fields))
    for text in (marker, f"ask {marker} kindly", f"{marker}{marker}"):
        assert prompt_tokenizer().encode_text(text) == ignorant.encode(text).ids


def test_the_start_of_a_prompt_is_the_familys_own() -> None:
    tokenizer = prompt_tokenizer("mistral", sentencepiece=True)
    prompt = assemble(tokenizer, [Message("user", "why"), Message("assistant", "so"), Message("user", "why")])
    assert tokenizer.decode(prompt.ids) == "<s>[INST]  why[/INST] so</s>[INST] why[/INST]"


@pytest.mark.parametrize("marker", EXTRA_MARKERS)
def test_markers_that_are_not_special_are_words_too(marker: str) -> None:
    tokenizer = prompt_tokenizer()
    [control] = tokenizer.encode_control(marker)
    assert control not in tokenizer.encode_text(f"x{marker}y")
    assert tokenizer.decode(tokenizer.encode_text(f"x{marker}y")) == f"x{marker}y"
    assert tokenizer.decode([control], skip_special=True) == marker


def test_runs_of_spaces_are_vocabulary() -> None:
    tokenizer = prompt_tokenizer()
    assert len(tokenizer.encode_control("    ")) == 1
    assert tokenizer.encode_text("    ") == tokenizer.encode_control("    ")


def test_a_marker_that_the_vocabulary_itself_holds_is_cut(tmp_path: Path) -> None:
    letters = {letter: number for number, letter in enumerate("<s>abc")}
    inner = Tokenizer(models.BPE(vocab=letters | {"<s": 6, "<s>": 7}, merges=[("<", "s"), ("<s", ">")]))
    inner.add_special_tokens([AddedToken("<s>", normalized=False)])
    tokenizer = PromptTokenizer.from_bundle(pack(write_tokenizer(tmp_path, tokenizer_json=inner.to_str())))
    assert tokenizer.encode_control("a<s>") == [3, 7]
    assert tokenizer.encode_text("a<s>b<s><s>") == [3, 0, 1, 2, 4, 0, 1, 2, 0, 1, 2]


def test_a_marker_of_one_character_is_refused(tmp_path: Path) -> None:
    inner = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.add_special_tokens(["a"])
    tokenizer = PromptTokenizer.from_bundle(pack(write_tokenizer(tmp_path, tokenizer_json=inner.to_str())))
    with pytest.raises(TokenizerUnsupported, match="cannot be used safely"):
        tokenizer.encode_text("ab")


def test_no_space_is_invented_at_a_seam() -> None:
    tokenizer = prompt_tokenizer(sentencepiece=True)
    pieces = ["the cache", "of a prompt", " holds", "<|im_end|>", "\nwhat"]
    ids = [token_id for piece in pieces for token_id in tokenizer.encode_text(piece)]
    assert tokenizer.decode(ids) == "".join(pieces)
    start, _ = tokenizer.encode_parts(["the cache"], start=True)
    assert tokenizer.decode(start) == " the cache"  # the family's own way to begin a prompt


@FAMILIES
def test_a_stream_gives_whole_characters_and_adds_up(sentencepiece: bool) -> None:
    tokenizer = prompt_tokenizer(sentencepiece=sentencepiece)
    text = " naïve 你好 🙂🌲 \u2028 👩\u200d👩\u200d👧 end "
    ids = tokenizer.encode_text(text) + tokenizer.encode_control("<|im_end|>")
    stream = tokenizer.stream()
    pieces = [stream.push([token_id]) for token_id in ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) > 10
    assert "".join(pieces) + stream.flush() == text


def test_a_cut_character_comes_out_at_the_end_only() -> None:
    tokenizer = prompt_tokenizer()
    tree = tokenizer.encode_text("𝄞")
    assert len(tree) > 1
    stream = tokenizer.stream()
    assert stream.push(tree[:-1]) == ""
    assert set(stream.flush()) == {"\ufffd"}
    assert stream.flush() == ""
    assert stream.push(tree) == "𝄞"


def test_rubbish_is_not_held_back_for_ever() -> None:
    tokenizer = prompt_tokenizer()
    byte = tokenizer.encode_text("𝄞")[-1]
    stream = tokenizer.stream()
    pieces = [stream.push([byte]) for _ in range(10 * MAX_HELD_TOKENS)]
    assert sum(bool(piece) for piece in pieces) == 10
    assert set("".join(pieces)) == {"\ufffd"}


def test_eos_ids_are_the_generation_configs_and_the_named_one() -> None:
    tokenizer = prompt_tokenizer()
    assert tokenizer.eos_ids == tuple(sorted({0, tokenizer.encode_control("<|im_end|>")[0]}))
    assert tokenizer.vocab_size == Tokenizer.from_str(byte_level_json()).get_vocab_size()


def test_saved_truncation_and_padding_do_not_cut_prompts(tmp_path: Path) -> None:
    inner = Tokenizer.from_str(byte_level_json())
    inner.enable_truncation(4)
    inner.enable_padding(length=8)
    tokenizer = PromptTokenizer.from_bundle(pack(write_tokenizer(tmp_path, tokenizer_json=inner.to_str())))
    assert tokenizer.decode(tokenizer.encode_text("a longer text than four tokens")) == "a longer text than four tokens"
    assert len(tokenizer.encode_text("a")) == 1


def test_tokens_of_the_config_alone_are_added_with_their_ids(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path)
    size = Tokenizer.from_str(byte_level_json()).get_vocab_size()
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["added_tokens_decoder"] = {str(size): {"content": "<|new|>", "special": True}}
    file.write_text(json.dumps(config), encoding="utf-8")
    assert PromptTokenizer.from_bundle(pack(directory)).encode_control("<|new|>") == [size]
    config["added_tokens_decoder"] = {str(size + 7): {"content": "<|new|>", "special": True}}
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(TokenizerUnsupported, match="make the two files agree"):
        PromptTokenizer.from_bundle(pack(directory))


def test_damaged_files_and_bundles_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerUnsupported, match=r"no tokenizer\.json"):
        pack(tmp_path)
    with pytest.raises(TokenizerUnsupported, match=r"tokenizer\.json cannot be read"):
        PromptTokenizer.from_bundle(pack(write_tokenizer(tmp_path, tokenizer_json="{}")))
    (tmp_path / "generation_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(TokenizerUnsupported, match=r"generation_config\.json does not hold a JSON object"):
        pack(tmp_path)
    with pytest.raises(Malformed, match="bundle"):
        PromptTokenizer.from_bundle(b"\x00nonsense")


def test_tokens_pack_as_little_endian_words() -> None:
    assert pack_tokens([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"
    assert unpack_tokens(pack_tokens([0, 7, 2**32 - 1])) == [0, 7, 2**32 - 1]
    with pytest.raises(OverflowError):
        pack_tokens([-1])


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.write_bytes(pack(write_tokenizer(tmp_path / "model")))
    script = """
import pathlib, sys
from kvgrove_prompt.assembly import Message, assemble
from kvgrove_prompt.tokenizer import PromptTokenizer
tokenizer = PromptTokenizer.from_bundle(pathlib.Path(sys.argv[1]).read_bytes())
assert assemble(tokenizer, [Message("user", "hi")]).count
print(sorted({"torch", "transformers", "numpy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, str(bundle)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_per_02_tokenising_a_long_text_does_not_stop_other_threads() -> None:
    tokenizer = prompt_tokenizer()
    work = Thread(target=tokenizer.encode_text, args=("a long text of many words " * 60_000,))
    work.start()
    turns = 0
    while work.is_alive():
        sleep(0.001)
        turns += 1
    assert turns > 20, "the interpreter's lock was held throughout"

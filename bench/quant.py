"""What the lossy codecs of the lower tiers cost and save, on a real model, as JSON.

``python bench/quant.py --json`` prefills prefixes of 1,024 tokens of English prose (Python's own reference pages) with
our engine in fp32, takes their blocks through each codec and back into other slots, and lets the model read 256 given
tokens after each of them. For each codec it prints

- ``bytes_ratio``: encoded bytes over those of the block;
- ``max_logits_error``, ``mean_logits_error``: absolute, over all logits at all positions, against reuse of the blocks
  themselves (``largest_logit`` says how large logits are);
- ``top1_agreement``: share of positions with the same most likely token;
- ``loss_increase``: of the given tokens, nats each (negative: luck);
- ``error_over_bound``: the largest error of a cached value over what the codec's documentation allows (at most 1);
- ``encode_ms``, ``decode_ms``: for one block on one core of the host, medians.

``control`` is the same with every fourth scale of each encoded block doubled: it must break the bound of each codec
and be farther from exact than the codec itself (``seen``), or the command fails. The exact codec must print 0 and 1.0.
SmolLM2 is made ready on the first run; ``--model DIR`` measures another one.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the daemon; before torch loads OpenMP
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # the bounds are the tests' own

import numpy as np
import torch
from codec_bounds import error_over_bound, values_of
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from kvgrove_cli import smollm2
from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.tiers.codec import LOSSY_CODECS, CodecName, decode, encode, encoded_bytes
from kvgrove_daemon.engine.attention import ATTENTION_NAME, register
from kvgrove_daemon.engine.model_source import open_model
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.engine.sequence import BlockTable, SequenceState, Slice, StepBatch

PAGES = ("specialnames", "compound", "types", "formatstrings")
BLOCK = 32
PREFIX = 1024
GIVEN = 256

Damage = Callable[[bytes], bytes]


def whole(body: bytes) -> bytes:
    return body


class Reader:
    """One model over an arena with room for a prefix, its copy and what is read after it."""

    def __init__(self, directory: Path) -> None:
        register()
        disable_progress_bar()
        self.layout: KVLayout = open_model(directory).shape.layout("float32", BLOCK)
        blocks = 2 * (PREFIX // BLOCK) + self.layout.blocks_for(GIVEN)
        self.arena = SharedMemoryArena(self.layout, blocks, segment_name(f"quant-{os.getpid()}", "0", 0))
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation=ATTENTION_NAME, local_files_only=True
        ).eval()
        self.runner = ModelRunner(model, self.arena)
        self._head = model.get_output_embeddings()
        self._hidden: list[torch.Tensor] = []
        # The engine keeps logits of last tokens only: all others are computed from what the head is given.
        model.base_model.register_forward_hook(lambda _module, _in, out: self._hidden.append(out.last_hidden_state[0]))

    def compute(self, slots: list[int], tokens: np.ndarray, past: int = 0) -> torch.Tensor:
        """Logits after each of ``tokens``, which follow ``past`` tokens that lie in the first of ``slots``."""
        self._hidden.clear()
        sequence = SequenceState(BlockTable(BLOCK, slots), past)
        self.runner.step(StepBatch((Slice(sequence, tokens, wants_logits=True),)))
        with torch.inference_mode():
            logits: torch.Tensor = self._head(self._hidden[0])
        return logits


@dataclass
class Tally:
    """Sums over prefixes of one codec."""

    largest: float = 0.0
    total: float = 0.0
    logits: int = 0
    same: int = 0
    positions: int = 0
    loss: float = 0.0
    over_bound: float = 0.0

    def add(self, ours: torch.Tensor, exact: torch.Tensor, given: np.ndarray) -> None:
        error = (ours - exact).abs()
        self.largest = max(self.largest, error.max().item())
        self.total += error.sum(dtype=torch.float64).item()
        self.logits += error.numel()
        self.same += int((ours.argmax(-1) == exact.argmax(-1)).sum())
        self.positions += len(ours)
        following = torch.from_numpy(given[1:])
        loss = [torch.nn.functional.cross_entropy(each[:-1], following, reduction="sum") for each in (ours, exact)]
        self.loss += (loss[0] - loss[1]).item() / (len(given) - 1) * len(given)

    def figures(self) -> dict[str, float]:
        return {
            "max_logits_error": self.largest,
            "mean_logits_error": self.total / self.logits,
            "top1_agreement": self.same / self.positions,
            "loss_increase": self.loss / self.positions,
            "error_over_bound": self.over_bound,
        }


def restore(reader: Reader, codec: CodecName, damage: Damage, tally: Tally, spent: dict[str, list[float]]) -> list[int]:
    """Take the prefix's blocks through ``codec`` into other slots, which are answered."""
    count, layout = PREFIX // BLOCK, reader.layout
    for slot in range(count):
        before = reader.arena.read_block(slot)
        begun = time.perf_counter()
        body = bytes(encode(layout, codec, before))
        encoded = time.perf_counter()
        after = bytes(decode(layout, codec, damage(body)))
        spent["decode_ms"].append((time.perf_counter() - encoded) * 1000)
        spent["encode_ms"].append((encoded - begun) * 1000)
        if codec != "none":
            exact = values_of(before, layout)
            off = error_over_bound(exact, values_of(after, layout), codec, layout).max().item()
            tally.over_bound = max(tally.over_bound, off)
        reader.arena.write_block(count + slot, after)
    return list(range(count, 2 * count))


def doubled(layout: KVLayout) -> Damage:
    """Every fourth scale of a block is twice what it was."""
    scales = layout.num_layers * 2 * layout.num_kv_heads

    def damage(body: bytes) -> bytes:
        values = np.frombuffer(body[-4 * scales :], "<f4").copy()
        values[::4] *= 2
        return body[: -4 * scales] + values.tobytes()

    return damage


def measure(directory: Path) -> dict[str, object]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    reader = Reader(directory)
    damage = doubled(reader.layout)
    runs: list[tuple[str, CodecName, Damage]] = [("none", "none", whole)]
    runs += [(codec, codec, whole) for codec in LOSSY_CODECS]
    runs += [(f"control {codec}", codec, damage) for codec in LOSSY_CODECS]
    tallies = {name: Tally() for name, _, _ in runs}
    spent: dict[str, dict[str, list[float]]] = {name: {"encode_ms": [], "decode_ms": []} for name, _, _ in runs}
    largest = 0.0
    try:
        for page in PAGES:
            tokens = np.asarray(tokenizer.encode(topics[page]).ids[: PREFIX + GIVEN], dtype=np.int64)
            prefix, given = tokens[:PREFIX], tokens[PREFIX:]
            own = list(range(PREFIX // BLOCK))
            fresh = list(range(2 * len(own), reader.arena.num_slots))
            reader.compute(own, prefix)
            exact = reader.compute(own + fresh, given, PREFIX)
            largest = max(largest, exact.abs().max().item())
            for name, codec, harm in runs:
                slots = restore(reader, codec, harm, tallies[name], spent[name])
                tallies[name].add(reader.compute(slots + fresh, given, PREFIX), exact, given)
    finally:
        reader.arena.close()
    codecs = {
        codec: {"bytes_ratio": encoded_bytes(reader.layout, codec) / reader.layout.block_bytes}
        | tallies[codec].figures()
        | {name: statistics.median(values) for name, values in spent[codec].items()}
        for codec in ("none", *LOSSY_CODECS)
    }
    control = {}
    for codec in LOSSY_CODECS:
        figures = tallies[f"control {codec}"].figures()
        farther = figures["mean_logits_error"] > codecs[codec]["mean_logits_error"]
        seen = codecs[codec]["error_over_bound"] <= 1 < figures["error_over_bound"] and farther
        control[codec] = figures | {"seen": seen}
    return {
        "model": directory.name,
        "prefixes": len(PAGES),
        "prefix_tokens": PREFIX,
        "positions": tallies["none"].positions,
        "largest_logit": largest,
        "codecs": codecs,
        "control": control,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per codec)")
    parser.add_argument("--model", type=Path, help="a model directory (default: SmolLM2, made ready on the first run)")
    arguments = parser.parse_args()
    directory = arguments.model or smollm2.prepare(smollm2.default_cache(), lambda _stage, _fraction: None)
    found = measure(directory)
    codecs, control = found["codecs"], found["control"]
    assert isinstance(codecs, dict)
    assert isinstance(control, dict)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for name, figures in codecs.items():
            print(f"{name:10}", "  ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    exact = codecs["none"]
    if exact["max_logits_error"] != 0 or exact["top1_agreement"] != 1:
        sys.exit("the exact codec changed an answer: these figures mean nothing")
    if unseen := [codec for codec, figures in control.items() if not figures["seen"]]:
        sys.exit(f"damaged scales went unseen under {', '.join(unseen)}: these figures mean nothing")


if __name__ == "__main__":
    main()

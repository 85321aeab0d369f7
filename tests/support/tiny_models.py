"""Tiny random models of every supported family, with a tokenizer and a chat template: made in seconds, offline.

Weights are random, so the models say nonsense: compare logits, never text. Weights are scaled up from transformers'
default initialisation, whose attention is nearly uniform and would hide a wrong key.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB = 1024
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 6, "num_key_value_heads": 2},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    "mistral": {"num_attention_heads": 6, "num_key_value_heads": 3, "sliding_window": 512},
    "gpt_neox": {"num_attention_heads": 4},
    "phi": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "phi3": {"num_attention_heads": 6, "num_key_value_heads": 2},
}


def build_tiny_model(family: str, directory: Path, *, seed: int = 7) -> Path:
    """Save a fp32 model of ``family`` into ``directory`` (any dtype can be loaded from it); answers the path."""
    config = AutoConfig.for_model(family, **_COMMON | FAMILIES[family])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 2 and "embed" not in name:
                    parameter.normal_(std=1.0 / parameter.shape[1] ** 0.5)
    model.save_pretrained(directory)
    _tokenizer().save_pretrained(directory)
    return directory


def cached_tiny_model(family: str, *, seed: int = 7) -> Path:
    """`build_tiny_model` into a directory that later runs find again, keyed by what would change its content."""
    recipe = json.dumps([_COMMON, FAMILIES[family], seed, inspect.getsource(sys.modules[__name__]), torch.__version__])
    root = Path(tempfile.gettempdir()) / f"kvgrove-tiny-models-{os.getuid()}"
    target = root / f"{family}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    if not target.is_dir():
        root.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            made = build_tiny_model(family, Path(scratch) / "model", seed=seed)
            try:
                made.rename(target)
            except OSError:
                if not target.is_dir():  # otherwise a parallel run was quicker, with the same content
                    raise
    return target


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=specials[0],
        pad_token=specials[0],
        eos_token=specials[2],
        chat_template=CHAT_TEMPLATE,
    )


def _sentences() -> list[str]:
    subjects = (
        "The grove",
        "A gardener",
        "Every tenant",
        "This document",
        "The node",
        "Our policy",
        "One prompt",
        "The answer",
    )
    verbs = ("remembers", "shares", "never reads", "keeps", "explains", "forgets", "warms", "measures")
    objects = (
        "the old version",
        "a longer prefix",
        "what others asked",
        "its own cache",
        "the quota",
        "a refund",
        "the manual",
    )
    return [f"{s} {v} {o} after {n} days.\n" for s in subjects for v in verbs for o in objects for n in (7, 14, 30)]

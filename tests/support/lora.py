"""LoRA adapters with random content for tiny models, saved as PEFT saves them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def save_adapter(base: Path, directory: Path, *, seed: int = 1, **settings: Any) -> Path:
    """An adapter of the model in ``base`` that changes what it says. ``settings``: of PEFT's LoraConfig."""
    config = LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": list(ATTENTION), "task_type": "CAUSAL_LM"} | settings
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = quietly(get_peft_model, AutoModelForCausalLM.from_pretrained(base, local_files_only=True), config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:  # PEFT starts B at zero: an adapter that changes nothing
                    parameter.normal_(std=0.2)
    quietly(model.save_pretrained, str(directory))
    return directory


def quietly(call: Callable[..., Any], *arguments: Any) -> Any:
    """PEFT reads names that transformers has deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments)

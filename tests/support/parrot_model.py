"""A real model that says one thing: it answers every prompt with the same call of a tool, token by token.

Its layers add nothing to the embedding of the last token, and its head follows that token to the next one of the
answer. So the engine, the sampler and the decoder are real, and what comes out is known.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tiny_models import build_tiny_model
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForCausalLM

from kvgrove_prompt.assembly import Message, assemble
from kvgrove_prompt.bundle import pack
from kvgrove_prompt.tokenizer import PromptTokenizer

ARGUMENTS = {"place": "back yard", "hours": [7, 8]}
PARTS = ["<tool_call>", '{"name": "look", "arguments": ', json.dumps(ARGUMENTS) + "}", "</tool_call>"]
"""Each is one token of the model's."""

HERMES = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}\
{{- 'Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content %}{{- message.content }}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def build_parrot(directory: Path) -> Path:
    """Save it into ``directory``; answers the path. Takes a few seconds."""
    build_tiny_model("llama", directory)
    config_file = directory / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(config_file.read_text())
    (directory / "chat_template.jinja").write_text(HERMES)
    config.pop("chat_template", None)
    config_file.write_text(json.dumps(config))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    spare = json.loads(tokenizer.to_str())
    spare["model"]["vocab"] = {text: at for text, at in spare["model"]["vocab"].items() if at < 1000}
    spare["model"]["merges"] = [
        pair for pair in spare["model"]["merges"] if "".join(pair) in spare["model"]["vocab"]
    ]  # the last ones make room for the answer's tokens within the model's vocabulary
    tokenizer = Tokenizer.from_str(json.dumps(spare))
    tokenizer.add_tokens([AddedToken(part, special=False, normalized=False) for part in PARTS])
    tokenizer.save(str(directory / "tokenizer.json"))
    prompts = PromptTokenizer.from_bundle(pack(directory))
    begin = assemble(prompts, [Message("user", "x")]).ids[-1]
    said = [token for part in PARTS for token in prompts.encode_control(part)]
    assert len(said) == len(PARTS)
    _teach(directory, [begin, *said, min(prompts.eos_ids)])
    return directory


def _teach(directory: Path, tokens: list[int]) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
                parameter.zero_()
        embeddings = model.get_input_embeddings().weight
        head = model.get_output_embeddings().weight
        for token, following in pairwise(tokens):
            head[following] += 10 * embeddings[token] / embeddings[token].norm()
    model.save_pretrained(directory)

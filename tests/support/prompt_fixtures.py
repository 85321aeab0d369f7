"""A small tokenizer, trained here in a moment, and chat templates written in the manner of well-known families."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

from prompt_formats import FORMAT_BOS, FORMAT_EOS, FORMAT_EXTRA_MARKERS, FORMAT_MARKERS, FORMATS
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from kvgrove_prompt.bundle import pack
from kvgrove_prompt.tokenizer import PromptTokenizer

MARKERS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
    *FORMAT_MARKERS,
]
EXTRA_MARKERS = ["<think>", "</think>", *FORMAT_EXTRA_MARKERS]  # added, but not special

CHATML = """\
{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA3 = """\
{%- if strftime_now is not defined %}{%- set date = "26 Jul 2024" %}{%- else %}{%- set date = "today" %}{%- endif %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date + "\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

# The system text goes into the LAST user turn, as Mistral's own templates of the v3 time do.
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, roles must alternate user/assistant/user/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

PHI = """\
{% for message in messages %}
    {% if message['role'] == 'system' and message['content'] %}
        {{-'<|system|>\n' + message['content'] + '<|end|>\n'}}
    {% elif message['role'] == 'user' %}
        {{-'<|user|>\n' + message['content'] + '<|end|>\n'}}
    {% elif message['role'] == 'assistant' %}
        {{-'<|assistant|>\n' + message['content'] + '<|end|>\n'}}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<|assistant|>\n' }}
{% else %}
    {{- eos_token }}
{% endif %}
"""

QWEN = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "phi": PHI, "qwen": QWEN}
"""Of plain conversations."""
ALL_TEMPLATES = TEMPLATES | FORMATS
BOS = {"llama3": "<|begin_of_text|>", "mistral": "<s>", "gemma": "<bos>"} | FORMAT_BOS
EOS = {
    "chatml": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "phi": "<|end|>",
} | FORMAT_EOS


def corpus() -> list[str]:
    text = "the cache of a prompt holds what many requests share and a question comes after it so ask kindly"
    words = text.split()
    lines = [" ".join(words[i % 7 :: 1 + i % 3]) + f". Numbered {i}, isn't it?\n" for i in range(200)]
    lines += ["code <| pipes |> and [/notes] or </b> <thinks> it\n"] * 40  # merges that lie across a marker's edges
    return [*lines, "système naïve Grüße 你好世界 🙂🌲 system user assistant document version name\n" * 4]


@functools.cache
def byte_level_json() -> str:
    """A ByteLevel BPE with markers of all families, ``<think>`` added but not special, and a run of spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=720,
        special_tokens=MARKERS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in [*EXTRA_MARKERS, "    "]])
    return tokenizer.to_str()


@functools.cache
def sentencepiece_json() -> str:
    """A byte-fallback BPE in the manner of Llama 2: a space invented before the text, and stripped on decoding."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)]],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus()[:200], trainer)
    fields = json.loads(tokenizer.to_str())
    fields["added_tokens"] = [token for token in fields["added_tokens"] if token["content"] == "<unk>"]
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in MARKERS])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer.to_str()


def write_tokenizer(
    directory: Path, family: str = "chatml", *, template: str | None = None, tokenizer_json: str | None = None
) -> Path:
    """The files of a tokenizer with the template of ``family`` in ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(tokenizer_json or byte_level_json(), encoding="utf-8")
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS.get(family, "<|im_end|>"),
    }
    if family in BOS:
        config["bos_token"] = BOS[family]
    config["chat_template"] = ALL_TEMPLATES[family] if template is None else template
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [0]}), encoding="utf-8")
    return directory


@functools.cache
def prompt_tokenizer(family: str = "chatml", *, sentencepiece: bool = False) -> PromptTokenizer:
    with tempfile.TemporaryDirectory() as directory:
        text = sentencepiece_json() if sentencepiece else None
        return PromptTokenizer.from_bundle(pack(write_tokenizer(Path(directory), family, tokenizer_json=text)))


def custom_tokenizer(template: str) -> PromptTokenizer:
    """A tokenizer with a template of the test's own."""
    with tempfile.TemporaryDirectory() as directory:
        return PromptTokenizer.from_bundle(pack(write_tokenizer(Path(directory), template=template)))

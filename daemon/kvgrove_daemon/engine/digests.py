"""What the weights of a model are, as one digest.

Role: the ``weights`` of a generation, computed by each node from the bytes it serves. It covers every safetensors file
by name and SHA-256 (so that ``sha256sum`` can check it) and the settings in ``config.json`` that say how to compute
with them; not what only says how the files came about. Invariant: a file that was hashed before is not read again while
its size and times are the same; the memory of that is a cache, and losing it costs time only.
Must not know: tokenizers (their digests are of the bundle that gateways fetch).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kvgrove_daemon.engine.model_source import ModelSource
from kvgrove_protocol.canonical import digest

_IMMATERIAL: Final = frozenset(
    {"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)


def weights_digest(source: ModelSource, cache: Path) -> str:
    """``sha256:<hex>``. Reads all weights (about 1 GB/s) unless ``cache``, a directory, remembers them."""
    files = file_digests(source.path, source.weights, cache)
    config = json.loads((source.path / "config.json").read_text(encoding="utf-8"))
    settings = json.dumps({k: v for k, v in config.items() if k not in _IMMATERIAL}, sort_keys=True)
    return f"sha256:{digest('weights', {'files': files, 'settings': settings}).hex()}"


def file_digests(folder: Path, files: Iterable[Path], cache: Path) -> dict[str, str]:
    """Name -> SHA-256 (hex) of ``files``, all in ``folder``. Those in ``cache`` with the same stamp are not read."""
    memory = cache / "weights" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}.json"
    known = _read(memory)
    stamped = {path.name: (_stamp(path), _remembered(known, path) or _hash(path)) for path in files}
    _write(memory, {name: [*stamp, hashed] for name, (stamp, hashed) in stamped.items()})
    return {name: hashed for name, (_, hashed) in stamped.items()}


def _stamp(path: Path) -> list[int]:
    """What changes when a file is written: size, modification and status-change time."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(known: dict[str, Any], path: Path) -> str | None:
    entry = known.get(path.name)
    if isinstance(entry, list) and len(entry) == 4 and entry[:3] == _stamp(path) and isinstance(entry[3], str):
        return entry[3]
    return None


def _read(memory: Path) -> dict[str, Any]:
    try:
        content = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(memory: Path, content: dict[str, Any]) -> None:
    # Best effort: where the cache cannot be written, the next start reads the weights again.
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=memory.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        Path(name).replace(memory)

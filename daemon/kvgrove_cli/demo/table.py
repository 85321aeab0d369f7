"""Rows and verdicts as text and as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kvgrove_cli.demo.rows import Row
from kvgrove_cli.durable import write_atomically
from kvgrove_cli.status import columns


def as_table(rows: Sequence[Row]) -> str:
    head = ("REQUEST", "PROMPT TOKENS", "REUSED", "MISSED, AND WHY", "FIRST TOKEN", "NODE")
    return columns(head, [(r.name, *_numbers(r), r.node) for r in rows])


def as_line(row: Row) -> str:
    """One finished request, for the progress of the story."""
    prompt, reused, missed, first = _numbers(row)
    return f"{row.name}: {prompt} prompt tokens, {reused} reused, missed {missed}, first token after {first}"


def as_verdicts(checks: Mapping[str, bool]) -> str:
    return "\n".join(f"{'ok  ' if held else 'FAIL'}  {name.replace('_', ' ')}" for name, held in checks.items())


def write_json(path: Path, rows: Sequence[Row], checks: Mapping[str, bool]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = msgspec.json.encode({"checks": dict(checks), "rows": list(rows)})
    write_atomically(path, msgspec.json.format(document, indent=2) + b"\n", mode=0o644)


def _numbers(row: Row) -> tuple[str, str, str, str]:
    missed = ", ".join(f"{count} {reason}" for reason, count in sorted(row.miss_reasons.items())) or "none"
    return f"{row.prompt_tokens:,}", f"{row.reused_tokens:,}", missed, f"{row.ttft_s:.3f} s"

"""Where events may be exported to: token ids leave the process, so it is this machine, or CURVE (I12)."""

from dataclasses import dataclass
from pathlib import Path

from kvgrove_link.addresses import stays_here
from kvgrove_protocol.errors import Terminal


class ExportRefused(Terminal):
    """A setting of the export that would give token ids away, or that cannot work."""

    code = "kv_events_refused"


@dataclass(frozen=True)
class CurveFiles:
    """``key``: this node's certificate with its secret key; ``clients``: folder of the readers' public ones."""

    key: Path
    clients: Path


@dataclass(frozen=True)
class ExportSettings:
    """Checked: see `export_settings`."""

    publish: str
    replay: str | None
    curve: CurveFiles | None


def export_settings(
    publish: str | None, replay: str | None, key: Path | None, clients: Path | None
) -> ExportSettings | None:
    """None: the export is off. Raises ExportRefused, which names the option and the cure."""
    if publish is None:
        for option, value in (("--kv-events-replay", replay), ("--kv-events-key", key)):
            if value is not None:
                raise ExportRefused(f"{option}: give --kv-events too, or leave both out", field=option)
        return None
    if (key is None) != (clients is None):
        raise ExportRefused(
            "--kv-events-key and --kv-events-clients: CURVE needs both, this node's certificate and the folder of the "
            "readers' public ones",
            field="--kv-events-key",
        )
    curve = CurveFiles(key, clients) if key is not None and clients is not None else None
    for option, address in (("--kv-events", publish), ("--kv-events-replay", replay)):
        if address is not None and curve is None and not stays_here(address):
            raise ExportRefused(
                f"{option} {address}: events carry token ids, so without CURVE they stay on this machine: give "
                "ipc://PATH or tcp://127.0.0.1:PORT, or --kv-events-key with --kv-events-clients",
                field=option,
            )
    return ExportSettings(publish, replay, curve)

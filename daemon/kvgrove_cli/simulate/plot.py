"""A picture of how runs went: hit ratio, imbalance and waiting over time, a line for each policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.simulate.report import Course

FORMATS: Final = (".svg", ".png")


def check(path: Path) -> None:
    """Whether a picture can be drawn there, before any time is spent. Raises UsageProblem."""
    if path.suffix.lower() not in FORMATS:
        raise UsageProblem(f"--plot: {path}: name a file that ends in {' or '.join(FORMATS)}", field="--plot")
    if not path.absolute().parent.is_dir():
        raise UsageProblem(f"--plot: {path}: its folder does not exist; make it first", field="--plot")
    try:
        import matplotlib  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise UsageProblem(
            "--plot: matplotlib is not installed; install the extra: pip install 'kvgrove[plot]'", field="--plot"
        ) from error


def draw(path: Path, courses: Mapping[str, Course], title: str) -> None:
    """Label -> course. Raises UsageProblem where the file cannot be written."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to load

    figure = Figure(figsize=(9, 9), layout="constrained")
    hits, balance, waits = figure.subplots(3, 1, sharex=True)
    for label, course in courses.items():
        hits.plot(course.minutes, course.token_hit_ratio, label=label)
        balance.plot(course.minutes, course.imbalance)
        waits.plot(course.minutes, course.wait_p95_s)
    hits.set(title=title, ylabel="token hit ratio", ylim=(0, 1))
    balance.set(ylabel="busiest node / mean")
    waits.set(ylabel="wait p95 [s]", xlabel="minutes")
    waits.set_yscale("symlog", linthresh=1.0)
    hits.legend(loc="upper left", fontsize="small", ncols=2)
    try:
        figure.savefig(path)
    except OSError as error:
        raise UsageProblem(
            f"--plot: {path}: {error.strerror}; name a file in a writable folder", field="--plot"
        ) from error

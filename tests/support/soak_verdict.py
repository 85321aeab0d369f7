"""Whether a process grew: memory, descriptors and threads over one life of it.

Role: samples from ``/proc``, and a verdict that neither a garbage collection nor a burst can turn. Memory: the median
of the last third of what was sampled after the beginning, against the median of the middle third. Must not know: what
the process does.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEFT_OUT_S = 60.0
"""Of a life's beginning: models are loaded, caches fill, the allocator finds its size."""
RSS_MARGIN, RSS_MARGIN_BYTES = 0.01, 4 << 20
"""The larger of the two may be gained from the middle third to the last one."""
DESCRIPTORS_MARGIN = 4
"""Connections that have just gone or come."""
THREADS_MARGIN = 6
"""Pools of a fixed size start their threads when they are first needed."""


@dataclass(frozen=True)
class Sample:
    """``at`` in seconds, ``rss`` in bytes."""

    at: float
    rss: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int, at: float) -> Sample:
        proc = Path("/proc") / str(pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        rss = int(status["VmRSS"].split()[0]) * 1024
        return cls(at, rss, len(os.listdir(proc / "fd")), int(status["Threads"]))


@dataclass(frozen=True)
class Growth:
    figures: dict[str, Any]
    broken: list[str]


@dataclass
class Life:
    """Of one process. ``pauses``: samples while nothing was asked for."""

    samples: list[Sample] = field(default_factory=list)
    pauses: list[Sample] = field(default_factory=list)

    def growth(self) -> Growth:
        if len(self.samples) < 9 or not self.pauses:
            return Growth({}, ["too few samples to tell growth: soak for longer"])
        began, end = self.samples[0].at, self.samples[-1].at
        skipped = min(LEFT_OUT_S, (end - began) / 3)
        samples = [each for each in self.samples if each.at >= began + skipped]
        third = len(samples) // 3
        middle, last = samples[third : 2 * third], samples[-third:]
        before, after = (statistics.median(each.rss for each in part) for part in (middle, last))
        margin = max(RSS_MARGIN * before, RSS_MARGIN_BYTES)
        early, late = self._halves(began + skipped)
        figures = {
            "judged_s": round(end - began - skipped, 1),
            "rss_middle_third_mib": round(before / (1 << 20), 2),
            "rss_last_third_mib": round(after / (1 << 20), 2),
            "rss_margin_mib": round(margin / (1 << 20), 2),
            "descriptors": [early.descriptors, late.descriptors],
            "threads": [early.threads, late.threads],
        }
        broken = []
        if after > before + margin:
            broken.append(f"memory grew by {(after - before) / (1 << 20):.1f} MiB, {margin / (1 << 20):.1f} allowed")
        if late.descriptors > early.descriptors + DESCRIPTORS_MARGIN:
            broken.append(f"open descriptors grew from {early.descriptors} to {late.descriptors}")
        if late.threads > early.threads + THREADS_MARGIN:
            broken.append(f"threads grew from {early.threads} to {late.threads}")
        return Growth(figures, broken)

    def _halves(self, began: float) -> tuple[Sample, Sample]:
        """The most that was seen in the first half of the pauses that count, and the last one."""
        pauses = [each for each in self.pauses if each.at >= began] or self.pauses
        first: Sequence[Sample] = pauses[: (len(pauses) + 1) // 2]
        most = Sample(0.0, 0, max(each.descriptors for each in first), max(each.threads for each in first))
        return most, pauses[-1]

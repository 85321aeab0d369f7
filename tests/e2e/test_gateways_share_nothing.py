"""Three daemons, two gateways that share nothing but events, and conversations going on while members come and go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_index_rig import run, three_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]  # six starts of a process, on a busy machine


def test_no_request_fails_and_each_index_equals_the_nodes_after_every_loss(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    with three_nodes(tmp_path, tiny_model("llama")) as fleet:
        report = run(fleet)
    print({event: round(seconds, 2) for event, seconds in report.index_equal_after_s.items()})  # shown by -s
    assert report.failures == []
    assert report.retried_requests <= 3  # what node-1 was answering when it was killed: at most one for each caller
    assert report.index_blocks > 0

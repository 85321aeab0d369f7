"""What the chart is judged by. A tool that cannot be had skips its tests, and says so with the cure."""

from __future__ import annotations

from pathlib import Path

import chart_tools
import pytest
from chart_rig import Chart


@pytest.fixture(scope="session")
def chart() -> Chart:
    try:
        return Chart(chart_tools.helm())
    except chart_tools.ToolProblem as problem:
        pytest.skip(f"no helm: {problem}")


@pytest.fixture(scope="session")
def promtool() -> Path:
    try:
        return chart_tools.promtool()
    except chart_tools.ToolProblem as problem:
        pytest.skip(f"no promtool: {problem}")


@pytest.fixture(scope="session")
def kubectl() -> Path:
    try:
        return chart_tools.kubectl()
    except chart_tools.ToolProblem as problem:
        pytest.skip(f"no kubectl: {problem}")

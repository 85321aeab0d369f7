"""Tests that need an NVIDIA GPU and CuPy. Elsewhere each is skipped, and says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest


def _missing() -> str | None:
    try:
        import cupy
    except ModuleNotFoundError:
        return "CuPy is not installed: install kvgrove[gpu]"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable GPU: {error}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = _missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"NOT RUN on a GPU: {missing}"))

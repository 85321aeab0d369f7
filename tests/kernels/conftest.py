"""The host test bed for CUDA sources, and which of its tests a plain run leaves to ``make test-kernels``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "simt"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kernels_full: the whole grid of kernel variants (make test-kernels)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shutil.which("g++") is None:  # `make test-kernels` fails without it, instead
        for item in items:
            if Path(__file__).parent in item.path.parents and item.path.name != "test_every_architecture.py":
                item.add_marker(pytest.mark.skip(reason="NOT RUN: the host test bed needs g++ and its sanitizers"))
    if "kernels_full" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("kernels_full")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)

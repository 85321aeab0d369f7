"""The images: built from what is there, started as the user that the chart says, the operator's without torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from chart_rig import ROOT, Chart

FILES = [ROOT / part / "Containerfile" for part in ("operator", "daemon")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_what_is_copied_is_there_and_the_user_is_the_charts(chart: Chart, file: Path) -> None:
    text = file.read_text()
    for sources in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)
    assert int(user) == chart.template().pod("kvgrove-operator")["spec"]["securityContext"]["runAsUser"]


def test_the_operators_image_installs_neither_torch_nor_what_needs_it() -> None:
    text = (ROOT / "operator" / "Containerfile").read_text()
    assert re.findall(r'"/src\[(.+?)\]"', text) == ["operator"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = " ".join([*project["dependencies"], *project["optional-dependencies"]["operator"]])
    assert not re.search(r"torch|transformers|cupy|numpy|peft", wanted)

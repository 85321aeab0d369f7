"""Where the programs of the control plane come from: a folder that is named, the cache, or one build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from controlplane import build

BUILD = Path(build.__file__)
_GO = """\
#!/bin/sh
echo built >> {count}
while [ "$1" != -o ]; do shift; done
sleep 0.2; printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
"""


def stand_in(folder: Path, names: tuple[str, ...]) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_a_named_folder_with_all_programs_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stand_in(tmp_path / "assets", build.PROGRAMS)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    assert build.control_plane() == folder


def test_a_named_folder_that_lacks_some_is_refused_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stand_in(tmp_path / "assets", ("etcd", "kube-apiserver", "kubectl"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    with pytest.raises(build.BuildProblem, match="lacks kube-controller-manager, kube-scheduler: add them, or unset"):
        build.control_plane()


def test_without_go_and_without_a_former_build_the_cure_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildProblem, match="missing: go"):
        build.control_plane()


def test_of_two_that_ask_at_once_one_builds_and_both_get_it(tmp_path: Path) -> None:
    """The compiler is a stand-in that counts: what is judged is the lock and the cache, not Go."""
    count, go = tmp_path / "count", tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(_GO.format(count=count))
    go.chmod(0o755)
    path = f"{go.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": path}
    environment.pop("KUBEBUILDER_ASSETS", None)
    pipe = subprocess.PIPE
    asking = [
        subprocess.Popen([sys.executable, BUILD], env=environment, stdout=pipe, stderr=pipe, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate() for process in asking]
    assert [process.returncode for process in asking] == [0, 0], answers
    ((first, _), (second, _)) = answers
    assert first == second
    assert build.is_whole(Path(first.strip()))
    assert len(count.read_text().splitlines()) == len(build.PROGRAMS)
    assert sorted(item.name for item in Path(first.strip()).parent.iterdir()) == [
        "building.lock",
        Path(first.strip()).name,
    ]
    assert sum("built kubectl" in said for _, said in answers) == 1, "the one that builds says how far it is"

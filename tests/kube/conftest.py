"""A real control plane for the tests in this folder: one for the whole run, a new one for those who break theirs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# importlib mode puts no test folder on sys.path; what the tests share is plain modules below this one.
sys.path.insert(0, str(Path(__file__).parent))

from controlplane.build import BuildProblem
from controlplane.build import control_plane as built
from controlplane.plane import Plane

CRDS = Path(__file__).parents[2] / "crds" / "manifests"


_PROGRAMS = pytest.StashKey[Path | str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the programs if a chosen test wants them: here, because minutes would be the first test's time-out.

    What the build says is not kept from those who wait.
    """
    wanted = any("control_plane_programs" in getattr(item, "fixturenames", ()) for item in session.items)
    if session.config.option.collectonly or not wanted:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            session.config.stash[_PROGRAMS] = built()
    except BuildProblem as problem:
        session.config.stash[_PROGRAMS] = str(problem)


@pytest.fixture(scope="session")
def control_plane_programs(pytestconfig: pytest.Config) -> Path:
    """The folder of the programs."""
    programs = pytestconfig.stash[_PROGRAMS]
    if isinstance(programs, str):
        pytest.skip(f"no control plane: {programs}")
    return programs


@pytest.fixture(scope="session")
def control_plane(control_plane_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """The control plane that tests share: they keep to namespaces and names of their own."""
    with Plane.in_folder(tmp_path_factory.mktemp("plane"), programs=control_plane_programs) as plane:
        yield plane


@pytest.fixture
def own_control_plane(control_plane_programs: Path, tmp_path: Path) -> Iterator[Plane]:
    """A control plane for one test, which may break it."""
    with Plane.in_folder(tmp_path / "plane", programs=control_plane_programs) as plane:
        yield plane


def apply_crds(plane: Plane) -> None:
    """Applies `crds/manifests` and waits until the API server serves them."""
    applied = plane.kubectl("apply", "--server-side", "-f", str(CRDS))
    assert applied.returncode == 0, applied.stderr
    waited = plane.kubectl("wait", "--for=condition=Established", "--timeout=50s", "-f", str(CRDS))
    assert waited.returncode == 0, waited.stderr


@pytest.fixture(scope="session")
def crds(control_plane: Plane) -> Plane:
    """The shared control plane, with our kinds."""
    apply_crds(control_plane)
    return control_plane


@pytest.fixture
def cluster_namespace(control_plane: Plane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A Kubernetes namespace of this test alone; it goes, with all that is in it, afterwards."""
    made = control_plane.kubectl("create", "-f", "-", "-o", "name", stdin=_NAMESPACE)
    assert made.returncode == 0, made.stderr
    name = made.stdout.strip().removeprefix("namespace/")
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


_NAMESPACE = "{apiVersion: v1, kind: Namespace, metadata: {generateName: test-}}"

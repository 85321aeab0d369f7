"""What Argo CD says of our objects, by a Lua interpreter over a fixture for each state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import argocd_health
import pytest
import yaml

from kvgrove_crds.cache_node import CacheNodeStatus
from kvgrove_crds.conditions import MODEL_VERSION_CONDITIONS, NAMESPACE_CONDITIONS
from kvgrove_crds.crd import DEFINITIONS
from kvgrove_crds.model_version import ModelVersionStatus
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_crds.reasons import ConditionReason

STATUSES: dict[str, Any] = {
    "PromptCacheNamespace": (PromptCacheNamespaceStatus, NAMESPACE_CONDITIONS),
    "ModelVersion": (ModelVersionStatus, MODEL_VERSION_CONDITIONS),
    "CacheNode": (CacheNodeStatus, ()),
}
FIXTURES = [
    pytest.param(kind, *case, id=f"{kind}-{case[0].stem}")
    for kind in argocd_health.scripts()
    for case in argocd_health.cases(kind)
]


@pytest.fixture
def lua() -> Any:
    """As bare as Argo CD's: no files, no processes, no modules."""
    lupa = pytest.importorskip("lupa.lua51", reason="no lupa: it runs the Lua of Argo CD's health checks")
    runtime = lupa.LuaRuntime(unpack_returned_tuples=True)
    for name in ("io", "os", "package", "require", "dofile", "loadfile", "debug", "python"):
        runtime.globals()[name] = None
    return runtime


@pytest.mark.parametrize(("kind", "file", "status", "message"), FIXTURES)
def test_each_state_has_the_health_that_people_expect(
    lua: Any, kind: str, file: Path, status: str, message: str
) -> None:
    assert argocd_health.health(lua, kind, yaml.safe_load(file.read_text())) == (status, message)


@pytest.mark.parametrize(("kind", "file", "status", "message"), FIXTURES)
def test_each_fixture_is_a_status_that_the_operator_may_write(kind: str, file: Path, status: str, message: str) -> None:
    held = yaml.safe_load(file.read_text())
    assert held["kind"] == kind
    if "status" not in held:
        return
    model, types = STATUSES[kind]
    parsed = model.model_validate(held["status"], by_alias=True, by_name=False)
    assert [condition.type for condition in parsed.conditions] == [each.value for each in types]
    assert all(isinstance(condition.reason, ConditionReason) for condition in parsed.conditions)


@pytest.mark.parametrize("kind", STATUSES)
def test_every_phase_has_a_fixture(kind: str) -> None:
    shown = {
        yaml.safe_load(file.read_text()).get("status", {}).get("phase") for file, _, _ in argocd_health.cases(kind)
    }
    model, _ = STATUSES[kind]
    assert set(get_args(model.model_fields["phase"].annotation)) <= shown
    listed = {file for file, _, _ in argocd_health.cases(kind)}
    assert listed == set((argocd_health.scripts()[kind].parent / "testdata").iterdir())


def test_every_kind_has_a_script_and_the_config_map_has_them_as_they_are() -> None:
    assert set(argocd_health.scripts()) == {each.model.__name__ for each in DEFINITIONS}
    text = argocd_health.CONFIG_MAP.read_text()
    assert text == argocd_health.config_map(), "run: python tests/support/argocd_health.py"
    data = yaml.safe_load(text)["data"]
    for kind, path in argocd_health.scripts().items():
        assert data[f"resource.customizations.health.kvgrove.dev_{kind}"] == path.read_text()

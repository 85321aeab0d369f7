"""What is rendered, judged by a real API server: accepted, restricted but for listed exceptions, and waited for."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_kinds
import pytest
import yaml
from chart_rig import CHART, NAMESPACE, ROOT, Chart, Rendered, value_sets
from document_commands import blocks

# After all other folders: modules of the same name are found where they were before.
sys.path.append(str(ROOT / "tests" / "kube"))

from controlplane.build import BuildProblem, control_plane
from controlplane.plane import Plane
from operator_rig import wait_for

from kvgrove_crds.manifests import load_manifests, parse_manifest
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator import alerts
from kvgrove_operator import settings as operator_settings
from kvgrove_operator.alert_rules import AlertRules
from kvgrove_operator.kube import Kube
from kvgrove_operator.placements import Placements
from kvgrove_operator.workloads import daemon_sets

pytestmark = pytest.mark.timeout(1800)  # the programs of the control plane may have to be built


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    try:
        programs = control_plane()
    except BuildProblem as problem:
        pytest.skip(f"no control plane: {problem}")
    with Plane.in_folder(tmp_path_factory.mktemp("plane"), programs=programs) as made:
        for name in (NAMESPACE, "team-a", "team-b", "shop"):
            assert made.kubectl("create", "namespace", name).returncode == 0
        applied = made.kubectl("apply", "--server-side", "--filename", str(ROOT / "crds" / "manifests"))
        assert applied.returncode == 0, applied.stderr
        waited = made.kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "crds" / "manifests"))
        assert waited.returncode == 0, waited.stderr
        made_crds = made.kubectl("apply", "-f", "-", stdin=prometheus_kinds.DEFINITIONS)
        assert made_crds.returncode == 0, made_crds.stderr
        yield made


def dry_run(plane: Plane, text: str) -> subprocess.CompletedProcess[str]:
    """What the server says to these objects, with every field that it does not know refused."""
    return plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-f", "-", stdin=text
    )


@pytest.mark.parametrize("name", value_sets())
def test_the_server_takes_every_object_as_it_is(plane: Plane, chart: Chart, name: str) -> None:
    rendered = chart.template(name)
    done = dry_run(plane, rendered.text)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(rendered.objects)


def test_a_field_that_the_server_does_not_know_is_seen(plane: Plane, chart: Chart) -> None:
    objects = [each for each in chart.template().objects if each["kind"] == "Deployment"]
    objects[0]["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1
    assert dry_run(plane, yaml.safe_dump_all(objects)).returncode != 0


def restricted(plane: Plane, pod: dict[str, Any], name: str) -> str:
    """What Pod Security `restricted` has against a Pod of this template; empty: nothing."""
    labels = [f"pod-security.kubernetes.io/enforce={level}" for level in ("restricted",)]
    assert plane.kubectl("label", "--overwrite", "namespace", "shop", *labels).returncode == 0
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {**pod["spec"], "serviceAccountName": "default"},
    }
    done = plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body))
    if done.returncode == 0:
        return ""
    found = re.search(r'violates PodSecurity "restricted:latest": (.+)', done.stderr)
    assert found is not None, done.stderr
    return found[1]


def test_operator_and_gateway_are_restricted(plane: Plane, chart: Chart) -> None:
    rendered = chart.template("production")
    for component in ("operator", "gateway"):
        assert not restricted(plane, rendered.pod(f"kvgrove-{component}"), component)


def operators_arguments(rendered: Rendered) -> list[str]:
    (container,) = rendered.pod("kvgrove-operator")["spec"]["containers"]
    return [text.replace("$(NAMESPACE)", NAMESPACE).replace("$(POD_NAME)", "pod") for text in container["args"]]


def daemon_pod(chart: Chart, values: str, **more: Any) -> dict[str, Any]:
    """The Pod template that the operator makes of the chart's settings."""
    rendered = chart.template(values, values=more)
    (model,) = load_manifests([ROOT / "crds" / "examples" / "valid" / "quickstart"]).model_versions
    (body,) = daemon_sets([model], NAMESPACE, operator_settings.parse(operators_arguments(rendered)).daemons).values()
    return dict(body["spec"]["template"])


def test_a_daemon_differs_from_restricted_by_the_listed_rights_and_by_none_without_them(
    plane: Plane, chart: Chart
) -> None:
    said = restricted(plane, daemon_pod(chart, "default"), "daemon")
    assert said == (
        'restricted volume types (volumes "state", "models" use restricted volume type "hostPath"), '
        "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false), "
        "runAsUser=0 (pod must not set runAsUser=0)"
    )
    assert not restricted(plane, daemon_pod(chart, "restricted"), "daemon")
    readme = (CHART / "README.md").read_text()
    for right in ("hostModels", "hostState", "user: 0", "sharedMemory"):
        assert f"`daemon.rights.{right}`" in readme


@pytest.mark.parametrize("right", ["hostModels", "hostState", "sharedMemory"])
def test_each_right_can_be_switched_off_alone(plane: Plane, chart: Chart, right: str) -> None:
    with_it, without = (daemon_pod(chart, "default", **{f"daemon.rights.{right}": given}) for given in (True, False))
    named = {volume["name"]: volume for volume in without["spec"]["volumes"]}
    lost = [volume["name"] for volume in with_it["spec"]["volumes"] if volume != named.get(volume["name"])]
    assert lost == [{"hostModels": "models", "hostState": "state", "sharedMemory": "shm"}[right]]
    workload = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "d", "namespace": "default"}, **without}
    workload["metadata"] = {"name": "d", "namespace": "default"}
    workload["spec"] = {**workload["spec"], "serviceAccountName": "default"}
    done = plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(workload))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def operators_kubeconfig(plane: Plane, chart: Chart) -> Path:
    """Of a ServiceAccount with the operator's rights of the production values in its own namespace."""
    rights = [
        each
        for each in chart.template("production").objects
        if each["kind"] in ("ServiceAccount", "Role", "RoleBinding") and "operator" in each["metadata"]["name"]
    ]
    applied = plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    assert applied.returncode == 0, applied.stderr
    token = plane.kubectl("create", "token", "kvgrove-operator", "-n", NAMESPACE).stdout.strip()
    kubeconfig = plane.settings.work / "kubeconfig-chart-operator"
    plane.settings.write_kubeconfig(kubeconfig, user="operator", token=token, namespace=NAMESPACE)
    return kubeconfig


def test_the_operator_has_daemons_scraped_with_the_rights_of_the_chart(
    plane: Plane, chart: Chart, operators_kubeconfig: Path
) -> None:
    settings = operator_settings.parse(operators_arguments(chart.template("production")))
    applied = plane.kubectl("apply", "-f", "-", "-o", "json", stdin=json.dumps(_MODEL))
    assert applied.returncode == 0, applied.stderr
    model = parse_manifest(json.loads(applied.stdout), source="the server")
    assert isinstance(model, ModelVersion)

    async def keep(*models: ModelVersion) -> None:
        with plane.client(operators_kubeconfig) as client:
            kube = Kube(client)
            await Placements(kube, settings).bring_about(models, complete=True)
            kube.close()

    def kept(kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = plane.get(kind, "--namespace", NAMESPACE)["items"]
        return [each for each in found if each["metadata"]["name"].startswith("kvgrove-daemon")]

    asyncio.run(keep(model))
    asyncio.run(keep(model))
    (monitor,), (daemon_set,) = kept("podmonitor"), kept("daemonset")
    assert [each["uid"] for each in monitor["metadata"]["ownerReferences"]] == [daemon_set["metadata"]["uid"]]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["metadata"]["generation"] == 1, "applied twice, it is as it was"
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= daemon_set["spec"]["template"]["metadata"]["labels"].items()
    (port,) = daemon_set["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]

    asyncio.run(keep())
    wait_for(lambda: not kept("podmonitor"), "the monitor to go with the placement")
    gone = plane.kubectl("delete", "customresourcedefinition", "podmonitors.monitoring.coreos.com")
    assert gone.returncode == 0, gone.stderr
    asyncio.run(keep(model))  # a cluster without the kind is none of its troubles
    assert kept("daemonset")
    assert plane.kubectl("delete", "modelversion", model.name, "--wait=false").returncode == 0


def test_the_operator_keeps_thresholds_with_the_rights_of_the_chart(plane: Plane, operators_kubeconfig: Path) -> None:
    declared = load_manifests([ROOT / "crds" / "examples" / "valid"]).namespaces

    async def keep(*namespaces: PromptCacheNamespace) -> None:
        with plane.client(operators_kubeconfig) as client:
            kube = Kube(client)
            await AlertRules(kube, NAMESPACE).bring_about(namespaces)
            kube.close()

    def kept() -> list[str]:
        held = plane.get("prometheusrule", alerts.NAME, "--namespace", NAMESPACE)
        groups = held["spec"]["groups"]
        return [rule["labels"]["namespace"] for group in groups for rule in group["rules"]]

    asyncio.run(keep(*declared))
    assert set(kept()) == {each.api_name for each in declared}
    asyncio.run(keep(declared[0]))
    assert set(kept()) == {declared[0].api_name}
    asyncio.run(keep())
    assert kept() == []
    gone = plane.kubectl("delete", "customresourcedefinition", "prometheusrules.monitoring.coreos.com")
    assert gone.returncode == 0, gone.stderr
    asyncio.run(keep(*declared))  # a cluster without the kind is none of its troubles


def test_what_the_guide_waits_for_comes(plane: Plane) -> None:
    """Every line of docs/gitops/README.md about our objects, after statuses as the operator writes them."""
    fixtures = ROOT / "docs" / "gitops" / "argocd" / "kvgrove.dev"
    for kind, plural in (("ModelVersion", "modelversions"), ("PromptCacheNamespace", "promptcachenamespaces")):
        held = yaml.safe_load((fixtures / kind / "testdata" / "ready.yaml").read_text())
        status = held.pop("status")
        where = ("--namespace", held["metadata"].get("namespace", "default"))
        if kind == "PromptCacheNamespace":
            held["spec"]["prefixes"] = [{"name": "support", "version": "1", "text": "You help people."}]
        for revision in (1, 2):  # the fixtures are about the second generation
            if kind == "PromptCacheNamespace":
                held["spec"]["purge"] = {"epoch": revision}
            applied = plane.kubectl("apply", "-f", "-", stdin=json.dumps(held))
            assert applied.returncode == 0, applied.stderr
        patch = json.dumps({"status": status})
        patched = plane.kubectl(
            "patch", plural, held["metadata"]["name"], *where, "--subresource=status", "--type=merge", "--patch", patch
        )
        assert patched.returncode == 0, patched.stderr
    lines = [
        line
        for body in blocks((ROOT / "docs" / "gitops" / "README.md").read_text(), "sh")
        for line in body.splitlines()
    ]
    waits = [line for line in lines if line.startswith(("kubectl wait", "kubectl delete"))]
    assert len(waits) >= 10
    for line in waits:
        words = [word.strip("'") for word in re.findall(r"(?:[^\s']|'[^']*')+", line)][1:]
        done = plane.kubectl(*(word.replace("'", "") for word in words))
        assert done.returncode == 0, f"{line}\n{done.stderr}"


_MODEL = {
    "apiVersion": "kvgrove.dev/v1alpha1",
    "kind": "ModelVersion",
    "metadata": {"name": "scraped"},
    "spec": {"source": {"hostPath": {"path": "/var/lib/kvgrove/models/scraped"}}},
}

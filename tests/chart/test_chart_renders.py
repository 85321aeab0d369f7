"""What is rendered over the value sets: as the snapshots have it, and as the programs take it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_rig import CHART, NAMESPACE, ROOT, Chart, Rendered, value_sets

from kvgrove_cli import key_folders
from kvgrove_daemon import settings as daemon_settings
from kvgrove_gateway import settings as gateway_settings
from kvgrove_operator import settings as operator_settings
from kvgrove_operator.paths import link_keys_secret
from kvgrove_operator.settings import MonitorSettings
from kvgrove_operator.workloads import LINK_KEYS, METRICS_PORT, SELECTOR, daemon_sets
from kvgrove_protocol.control import GATEWAY

SNAPSHOTS = Path(__file__).parent / "snapshots"
_ELSEWHERE_JUDGED = ("CustomResourceDefinition", "PrometheusRule", "ConfigMap")
"""Copies of files that have tests of their own."""


@pytest.mark.parametrize("name", value_sets())
def test_what_is_rendered_is_the_snapshot(chart: Chart, name: str) -> None:
    """To accept a change: KVGROVE_SNAPSHOTS=write, and look at the difference."""
    objects = [each for each in chart.template(name).objects if each["kind"] not in _ELSEWHERE_JUDGED]
    text = yaml.safe_dump_all(objects, sort_keys=False, width=120)
    file = SNAPSHOTS / f"{name}.yaml"
    if os.environ.get("KVGROVE_SNAPSHOTS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.is_file(), "KVGROVE_SNAPSHOTS=write makes it"
    assert file.read_text() == text


def test_there_is_no_snapshot_of_nothing() -> None:
    assert {path.stem for path in SNAPSHOTS.iterdir()} == set(value_sets())


def arguments(pod: dict[str, Any]) -> list[str]:
    """As the container's process gets them."""
    (container,) = pod["spec"]["containers"]
    known = {"NAMESPACE": NAMESPACE, "POD_NAME": "pod-0"}
    assert {each["name"] for each in container["env"]} >= {
        name for text in container["args"] for name in re.findall(r"\$\((\w+)\)", text) if name in known
    }
    return [re.sub(r"\$\((\w+)\)", lambda found: known.get(found[1], found[0]), text) for text in container["args"]]


def with_keys(given: list[str], folder: Path, role: str) -> list[str]:
    """With link keys where the Secret of ``role`` would be mounted."""
    key_folders.ensure(folder)
    assert any(LINK_KEYS in text for text in given)
    return [text.replace(LINK_KEYS, str(folder / role)) for text in given]


def ports(pod: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}


@pytest.mark.parametrize("name", value_sets())
def test_the_programs_take_the_arguments_that_they_are_given(chart: Chart, tmp_path: Path, name: str) -> None:
    rendered = chart.template(name)
    prefix = "caches" if name == "elsewhere" else "kvgrove"
    pod = rendered.pod(f"{prefix}-operator")
    operator = operator_settings.parse(arguments(pod))
    service = rendered.one("Service", f"{prefix}-operator")
    assert operator.daemons.control == f"tcp://{service['metadata']['name']}.{NAMESPACE}.svc:7400"
    assert operator.listen == f"tcp://*:{ports(pod)['fleet']}"
    assert operator.probes == ("0.0.0.0", ports(pod)["probes"])  # noqa: S104 - in a Pod of its own
    assert operator.metrics == ("0.0.0.0", ports(pod)["metrics"])  # noqa: S104
    if rendered.of("HorizontalPodAutoscaler") or name != "elsewhere":
        pod = rendered.pod("kvgrove-gateway")
        gateway = gateway_settings.parse(with_keys(arguments(pod), tmp_path, "gateway"))
        assert gateway.control == operator.daemons.control
        assert gateway.port == ports(pod)["http"]
        (container,) = pod["spec"]["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        secrets = {
            volume["name"]: volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume
        }
        assert secrets[mounts[str(gateway.keys.parent)]] == "kvgrove-keys"
        assert secrets[mounts[LINK_KEYS]] == link_keys_secret(GATEWAY)
        assert len(mounts) == len(container["volumeMounts"])
        assert len({volume["name"] for volume in pod["spec"]["volumes"]}) == len(pod["spec"]["volumes"])
        assert pod["spec"]["terminationGracePeriodSeconds"] > gateway.limits.drain_s


@pytest.mark.parametrize("name", value_sets())
def test_the_daemons_that_the_operator_makes_of_the_settings_take_theirs(
    chart: Chart, tmp_path: Path, name: str
) -> None:
    rendered = chart.template(name)
    prefix = "caches" if name == "elsewhere" else "kvgrove"
    operator = operator_settings.parse(arguments(rendered.pod(f"{prefix}-operator")))
    (model,) = _models()
    (body,) = daemon_sets([model], NAMESPACE, operator.daemons).values()
    pod = body["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    known = {"NODE_NAME": "node-a", "POD_UID": "uid", "POD_IP": "10.0.0.1"}
    given = [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], text) for text in container["args"]]
    daemon = daemon_settings.parse(with_keys(given, tmp_path, "daemon"))
    assert daemon.listen == "tcp://10.0.0.1:7401"
    account = pod["spec"].get("serviceAccountName", "default")
    accounts = {each["metadata"]["name"] for each in rendered.of("ServiceAccount")}
    assert account in accounts | {"default"}
    for policy in rendered.of("NetworkPolicy"):
        if policy["metadata"]["name"].endswith("-daemon"):
            assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert dict(pair.split("=") for pair in SELECTOR.split(",")).items() <= pod["metadata"]["labels"].items()


def _models() -> list[Any]:
    from kvgrove_crds.manifests import load_manifests

    return list(load_manifests([ROOT / "crds" / "examples" / "valid" / "quickstart"]).model_versions)


def test_definitions_are_those_of_the_models_and_can_be_kept_or_left_out(chart: Chart) -> None:
    manifests = {path.name: path.read_text() for path in (ROOT / "crds" / "manifests").glob("*.yaml")}
    files = {path.name: path.read_text() for path in (CHART / "files" / "crds").glob("*.yaml")}
    assert files == manifests, "run: python -m kvgrove_crds render"

    def installed(name: str) -> dict[str, Any]:
        return {each["metadata"]["name"]: each for each in chart.template(name).of("CustomResourceDefinition")}

    kept = installed("default")
    assert {each["metadata"]["name"]: each["spec"] for each in kept.values()} == {
        each["metadata"]["name"]: each["spec"] for each in map(yaml.safe_load, manifests.values())
    }
    assert all(each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for each in kept.values())
    assert all("annotations" not in each["metadata"] for each in installed("elsewhere").values())
    assert not installed("namespaced")


def test_gateways_scale_by_one_of_the_two(chart: Chart) -> None:
    by_hand, automatic = chart.template(), chart.template("production")
    assert by_hand.one("Deployment", "kvgrove-gateway")["spec"]["replicas"] == 2
    assert not by_hand.of("HorizontalPodAutoscaler")
    assert "replicas" not in automatic.one("Deployment", "kvgrove-gateway")["spec"]
    (scaler,) = automatic.of("HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "kvgrove-gateway"


def test_selectors_find_the_pods_that_they_are_about(chart: Chart) -> None:
    rendered = chart.template("production")
    pods = {name: rendered.pod(f"kvgrove-{name}")["metadata"]["labels"] for name in ("operator", "gateway")}
    for kind, path in (
        ("Service", ("selector",)),
        ("PodDisruptionBudget", ("selector", "matchLabels")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
        ("PodMonitor", ("selector", "matchLabels")),
    ):
        for each in rendered.of(kind):
            component = each["metadata"]["name"].removeprefix("kvgrove-")
            selector: Any = each["spec"]
            for step in path:
                selector = selector[step]
            found = [name for name, labels in pods.items() if selector.items() <= labels.items()]
            assert found == [name for name in pods if name == component], (kind, component)


def test_images_come_by_digest_from_a_registry_of_ones_own(chart: Chart) -> None:
    rendered = chart.template("production")
    image = rendered.pod("kvgrove-operator")["spec"]["containers"][0]["image"]
    assert image == f"registry.example.com/mirror/kvgrove-operator@sha256:{'1' * 64}"
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    daemons = operator_settings.parse(arguments(rendered.pod("kvgrove-operator"))).daemons
    assert daemons.image == f"registry.example.com/mirror/kvgrove-daemon:{version}"
    assert rendered.pod("kvgrove-gateway")["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_what_is_scraped_keeps_its_own_namespace_label(chart: Chart) -> None:
    monitors = chart.template("production").of("PodMonitor")
    assert {each["metadata"]["name"] for each in monitors} == {"kvgrove-operator", "kvgrove-gateway"}
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"]
        assert endpoint["port"] in ("http", METRICS_PORT)


def test_daemons_are_scraped_as_the_operator_is_told_to(chart: Chart) -> None:
    def told(values: str, **more: Any) -> MonitorSettings | None:
        pod = chart.template(values, values=more).pod("kvgrove-operator")
        return operator_settings.parse(arguments(pod)).pod_monitors

    assert told("production") == MonitorSettings("30s", {"release": "prometheus"})
    assert told("default") is None
    assert told("production", **{"daemon.metricsPort": 0}) is None


def test_the_notes_name_the_next_command(chart: Chart) -> None:
    done = chart.run("install", "kvgrove", str(CHART), "--namespace", NAMESPACE, "--dry-run=client")
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert f"kubectl create secret generic kvgrove-keys --namespace {NAMESPACE} --from-file=keys.yaml" in notes


def test_a_cluster_that_is_too_old_is_refused(chart: Chart) -> None:
    done = chart.run("template", "kvgrove", str(CHART), "--kube-version", "1.29.0")
    assert done.returncode != 0
    assert "1.29.0" in done.stderr


def rendered_names(rendered: Rendered) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in rendered.objects}


def test_without_gateways_nothing_of_them_is_left(chart: Chart) -> None:
    left = rendered_names(chart.template("elsewhere"))
    assert not [name for _, name in left if "gateway" in name]

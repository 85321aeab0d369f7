"""DaemonSets from ModelVersions: one for each placement."""

from dataclasses import replace
from typing import Any

from kvgrove_crds.manifests import parse_manifest
from kvgrove_crds.model_version import ModelVersion
from kvgrove_operator.model_files import desired_model
from kvgrove_operator.settings import DaemonRights, DaemonSettings
from kvgrove_operator.workloads import PLACEMENT, daemon_sets, nodes_of, overruled, unscheduled_of

SETTINGS = DaemonSettings(control="tcp://operator:7400", model_root="/models")
COMMIT = "1" * 40


def model(
    name: str, source: dict[str, Any] | None = None, adapters: list[dict[str, Any]] | None = None, **engine: Any
) -> ModelVersion:
    parsed = parse_manifest(
        {
            "apiVersion": "kvgrove.dev/v1alpha1",
            "kind": "ModelVersion",
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {
                "source": source or {"hostPath": {"path": f"/models/{name}"}},
                "adapters": adapters or [],
                "engine": engine,
            },
        },
        source="test",
    )
    assert isinstance(parsed, ModelVersion)
    return parsed


def container(body: dict[str, Any]) -> dict[str, Any]:
    (only,) = body["spec"]["template"]["spec"]["containers"]
    return dict(only)


def test_ops_12_models_with_equal_placement_share_one_and_a_new_one_changes_no_pod() -> None:
    (one,) = daemon_sets([model("v1")], "ops", SETTINGS).values()
    (both,) = daemon_sets([model("v2"), model("v1")], "ops", SETTINGS).values()
    assert both["spec"] == one["spec"]
    assert [owner["uid"] for owner in both["metadata"]["ownerReferences"]] == ["uid-v1", "uid-v2"]


def test_where_a_pod_may_run_makes_another_and_what_it_is_does_not() -> None:
    plain, gpu, other = model("v1"), {"key": "gpu", "operator": "Exists"}, {"key": "spot", "operator": "Exists"}
    apart = [model("v2", nodeSelector={"gpu": "yes"}), model("v3", tolerations=[gpu, other])]
    together = [
        model("v4", image="other:1"),
        model("v5", resources={"limits": {"nvidia.com/gpu": 1}}),
        model("v6", args=["--device", "cuda"]),
        model("v7", maxBatchSize=4),
    ]
    assert len(daemon_sets([plain, *apart], "ops", SETTINGS)) == 3
    assert len(daemon_sets([plain, *together], "ops", SETTINGS)) == 1
    assert len(daemon_sets([apart[1], model("v8", tolerations=[other, gpu])], "ops", SETTINGS)) == 1


def test_the_newest_model_version_says_what_the_daemon_of_its_nodes_is_and_the_others_say_so() -> None:
    def dated(each: ModelVersion, day: int) -> ModelVersion:
        metadata = each.metadata.model_copy(update={"creation_timestamp": f"2026-01-0{day}T00:00:00Z"})
        return each.model_copy(update={"metadata": metadata})

    older, newer = dated(model("v2", image="daemon:1"), 1), dated(model("v1", image="daemon:2", args=["--x"]), 2)
    elsewhere = model("v3", image="daemon:3", nodeSelector={"gpu": "yes"})
    bodies = daemon_sets([older, newer, elsewhere], "ops", SETTINGS)
    assert sorted(container(body)["image"] for body in bodies.values()) == ["daemon:2", "daemon:3"]
    said = "spec.engine.image, spec.engine.args of v1 apply, which is newer and has the same nodes"
    assert overruled([older, newer, elsewhere]) == {"v2": said}


def test_another_release_of_the_operator_changes_the_daemon_set_and_makes_no_other_one() -> None:
    """Another one would end all Pods of the first at once, and with them what they hold in memory."""
    before = daemon_sets([model("v1")], "ops", replace(SETTINGS, image="kvgrove/daemon:1"))
    after = daemon_sets([model("v1")], "ops", replace(SETTINGS, image="kvgrove/daemon:2"))
    assert before.keys() == after.keys()
    assert before != after


def test_the_daemon_knows_its_placement_and_no_other_daemon_is_scheduled_beside_it() -> None:
    bodies = daemon_sets([model("v1"), model("v2", nodeSelector={"gpu": "yes"})], "ops", SETTINGS)
    for body in bodies.values():
        pod = body["spec"]["template"]
        arguments = container(body)["args"]
        assert arguments[arguments.index("--placement") + 1] == pod["metadata"]["labels"][PLACEMENT]
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        labels = pod["metadata"]["labels"]
        assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_the_scheduler_says_why_a_pod_waits() -> None:
    def pod(name: str, **condition: str) -> dict[str, Any]:
        metadata = {"name": name, "labels": {PLACEMENT: "p"}}
        return {"metadata": metadata, "spec": {}, "status": {"conditions": [{"type": "PodScheduled"} | condition]}}

    waiting = pod("b", status="False", message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    assert unscheduled_of([pod("a", status="True")]) == {}
    assert unscheduled_of([pod("a", status="True"), waiting]) == {
        "p": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    }


def test_pods_are_replaced_only_when_somebody_deletes_them() -> None:
    (body,) = daemon_sets([model("v1")], "ops", SETTINGS).values()
    assert body["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_daemon_is_named_after_its_node_and_dials_the_operator() -> None:
    (body,) = daemon_sets([model("v1", args=["--threads", "2"])], "ops", SETTINGS).values()
    arguments = container(body)["args"]
    assert arguments[:4] == ["--member", "$(NODE_NAME)", "--control", "tcp://operator:7400"]
    assert arguments[-2:] == ["--threads", "2"]


def test_daemons_get_the_keys_of_their_links_or_are_told_that_there_are_none() -> None:
    (keyed,) = daemon_sets([model("v1")], "ops", SETTINGS).values()
    (plain,) = daemon_sets([model("v1")], "ops", replace(SETTINGS, plain_links=True)).values()
    assert container(keyed)["args"][8:10] == ["--link-keys", "/etc/kvgrove/link-keys"]
    secrets = [each["secret"] for each in keyed["spec"]["template"]["spec"]["volumes"] if "secret" in each]
    assert [each["secretName"] for each in secrets] == ["kvgrove-link-daemon"]
    assert "--plain-links" in container(plain)["args"]
    assert not any("secret" in each for each in plain["spec"]["template"]["spec"]["volumes"])


def test_only_what_is_not_below_the_model_root_needs_a_volume_of_its_own() -> None:
    (below,) = daemon_sets([model("v1")], "ops", SETTINGS).values()
    assert {volume["name"] for volume in below["spec"]["template"]["spec"]["volumes"]} == {
        "models",
        "state",
        "shm",
        "scratch",
        "link-keys",
    }
    elsewhere = model("v2", {"hostPath": {"path": "/data/v2"}})
    claim = model("v3", {"pvc": {"claimName": "weights", "path": "v3"}})
    (more,) = daemon_sets([elsewhere, claim], "ops", SETTINGS).values()
    mounts = {mount["mountPath"] for mount in container(more)["volumeMounts"]}
    assert {"/data/v2", "/var/lib/kvgrove/volumes/weights"} <= mounts
    assert desired_model(claim, "/models", "").path == "/var/lib/kvgrove/volumes/weights/v3"


def test_adapters_are_found_where_models_are_and_bring_their_volumes() -> None:
    adapters = [
        {"name": "hub", "source": {"huggingFace": {"repo": "owner/tone", "revision": COMMIT}}},
        {"name": "claim", "source": {"pvc": {"claimName": "adapters", "path": "german"}}},
    ]
    adapted = model("v1", adapters=adapters)
    hub, claim = desired_model(adapted, "/models", "").adapter_paths
    assert hub == f"/models/hub/models--owner--tone/snapshots/{COMMIT}"
    assert claim == "/var/lib/kvgrove/volumes/adapters/german"
    (body,) = daemon_sets([adapted], "ops", SETTINGS).values()
    assert "/var/lib/kvgrove/volumes/adapters" in {mount["mountPath"] for mount in container(body)["volumeMounts"]}


def test_a_hugging_face_source_is_the_snapshot_of_its_commit() -> None:
    found = desired_model(model("v1", {"huggingFace": {"repo": "owner/name", "revision": COMMIT}}), "/models", "")
    assert found.path == f"/models/hub/models--owner--name/snapshots/{COMMIT}"


def test_nodes_are_those_of_pods_that_are_not_over() -> None:
    def pod(node: str, phase: str = "Running") -> dict[str, Any]:
        labels = {PLACEMENT: "p"}
        return {"metadata": {"labels": labels}, "spec": {"nodeName": node}, "status": {"phase": phase}}

    assert nodes_of([pod("a"), pod("b", "Failed"), pod(""), pod("c", "Pending")]) == {"p": frozenset({"a", "c"})}


def test_each_right_that_is_switched_off_is_gone_and_the_rest_is_restricted_in_any_case() -> None:
    (given,) = daemon_sets([model("v1")], "ops", SETTINGS).values()
    rights = DaemonRights(host_models=False, host_state=False, shared_memory=False, user=65532)
    (bare,) = daemon_sets([model("v1")], "ops", replace(SETTINGS, rights=rights)).values()
    kinds = [
        {
            volume["name"]: next(kind for kind in volume if kind != "name")
            for volume in each["spec"]["template"]["spec"]["volumes"]
        }
        for each in (given, bare)
    ]
    always = {"scratch": "emptyDir", "link-keys": "secret"}
    assert kinds[0] == {"models": "hostPath", "state": "hostPath", "shm": "emptyDir"} | always
    assert kinds[1] == {"state": "emptyDir"} | always
    pod = bare["spec"]["template"]["spec"]["securityContext"]
    assert pod["runAsNonRoot"]
    assert pod["fsGroup"] == 65532
    for each in (given, bare):
        assert container(each)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert each["spec"]["template"]["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_metrics_are_served_on_the_pods_own_address_under_a_named_port() -> None:
    (body,) = daemon_sets([model("v1")], "ops", replace(SETTINGS, metrics_port=7402)).values()
    arguments = container(body)["args"]
    assert arguments[arguments.index("--metrics") + 1] == "$(POD_IP):7402"
    assert container(body)["ports"] == [{"name": "metrics", "containerPort": 7402}]

"""Rights: the operator's are those of its manifests, nobody has a wildcard, and only the operator has a token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import yaml
from chart_rig import NAMESPACE, ROOT, Chart, value_sets

MANIFESTS = ROOT / "operator" / "manifests"
ROLES = ("ClusterRole", "Role")
BINDINGS = ("ClusterRoleBinding", "RoleBinding")


def rights(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(kind, namespace, name) -> rules."""
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each["rules"]
        for each in objects
        if each["kind"] in ROLES
    }


def bindings(objects: Iterable[dict[str, Any]]) -> set[tuple[str, str, str, str, str]]:
    """(kind, namespace, name, role, who)."""
    return {
        (
            each["kind"],
            each["metadata"].get("namespace", ""),
            each["metadata"]["name"],
            f"{each['roleRef']['kind']}/{each['roleRef']['name']}",
            ",".join(f"{who['namespace']}/{who['name']}" for who in each["subjects"]),
        )
        for each in objects
        if each["kind"] in BINDINGS
    }


def manifests(*names: str) -> list[dict[str, Any]]:
    return [each for name in names for each in yaml.safe_load_all((MANIFESTS / name).read_text())]


def test_cluster_wide_the_operators_rights_are_those_of_its_manifests(chart: Chart) -> None:
    objects, declared = chart.template().objects, manifests("cluster-wide/rbac.yaml")
    mine = {key: rules for key, rules in rights(objects).items() if "operator" in key[2]}
    assert mine == rights(declared)
    assert bindings(objects) == bindings(declared)


def test_in_named_namespaces_the_operators_rights_are_those_of_its_manifests(chart: Chart) -> None:
    objects, declared = chart.template("namespaced").objects, manifests("namespaced/rbac.yaml")
    assert rights(objects) == rights(declared)
    (watched,) = manifests("namespaced/watched-namespace.yaml")
    for team in ("team-a", "team-b"):
        declared.append({**watched, "metadata": {**watched["metadata"], "namespace": team}})
    assert bindings(objects) == bindings(declared)


def test_monitoring_costs_two_rights_in_its_own_namespace(chart: Chart) -> None:
    plain, more = rights(chart.template().objects), rights(chart.template("production").objects)
    added = {key: [rule for rule in rules if rule not in plain[key]] for key, rules in more.items()}
    assert {key: rules for key, rules in added.items() if rules} == {
        ("Role", NAMESPACE, "kvgrove-operator"): [
            {"apiGroups": ["monitoring.coreos.com"], "resources": [kind], "verbs": ["create", "patch"]}
            for kind in ("prometheusrules", "podmonitors")
        ]
    }


@pytest.mark.parametrize("name", value_sets())
def test_no_rule_has_a_wildcard_or_gives_more_rights_than_its_owner_has(chart: Chart, name: str) -> None:
    for key, rules in rights(chart.template(name).objects).items():
        for rule in rules:
            said = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not [word for word in said if "*" in word], key
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"]), key
            assert not rule.get("nonResourceURLs"), key


@pytest.mark.parametrize("name", value_sets())
def test_only_the_operator_has_a_token_and_each_part_its_own_account(chart: Chart, name: str) -> None:
    rendered = chart.template(name)
    tokens = {each["metadata"]["name"]: each["automountServiceAccountToken"] for each in rendered.of("ServiceAccount")}
    assert not [account for account, token in tokens.items() if token and "operator" not in account]
    accounts = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["serviceAccountName"]
        for each in rendered.of("Deployment")
    }
    assert len(set(accounts.values())) == len(accounts)


def test_our_kinds_are_added_to_the_clusters_own_roles(chart: Chart) -> None:
    objects = chart.template().objects
    roles = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ClusterRole"}

    def added_to(role: str) -> set[tuple[str, str]]:
        label = f"rbac.authorization.k8s.io/aggregate-to-{role}"
        return {
            (resource, verb)
            for each in roles.values()
            if each["metadata"]["labels"].get(label) == "true"
            for rule in each["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    kinds = {"promptcachenamespaces", "modelversions", "cachenodes"}
    assert added_to("view") == {(kind, verb) for kind in kinds for verb in ("get", "list", "watch")}
    changing = {verb for kind, verb in added_to("edit") - added_to("view") if kind == "promptcachenamespaces"}
    assert changing == {"create", "update", "patch", "delete", "deletecollection"}
    assert {kind for kind, _ in added_to("edit") - added_to("view")} == {"promptcachenamespaces"}

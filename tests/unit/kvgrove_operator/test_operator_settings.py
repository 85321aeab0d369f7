"""The operator's command line: what it defaults to, and how it says no."""

from pathlib import Path

import pytest
import yaml

from kvgrove_operator.settings import parse


def test_daemons_dial_the_service_of_the_operators_own_namespace_unless_told() -> None:
    assert parse(["--own-namespace", "ops"]).daemons.control == "tcp://kvgrove-operator.ops.svc:7400"
    told = parse(["--own-namespace", "ops", "--advertise", "tcp://10.0.0.1:1"])
    assert told.daemons.control == "tcp://10.0.0.1:1"


def test_namespaces_are_a_set_and_none_means_all() -> None:
    assert parse(["--own-namespace", "ops"]).namespaces == ()
    assert parse(["--own-namespace", "ops", "--namespace", "b", "--namespace", "a", "--namespace", "b"]).namespaces == (
        "a",
        "b",
    )


def test_a_leader_believes_in_itself_for_a_shorter_time_than_others_wait() -> None:
    leader = parse(["--own-namespace", "ops", "--lease-duration", "30"]).leader
    assert leader.trusted < leader.duration
    assert leader.renewal * 2 <= leader.trusted


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--own-namespace"),
        (["--own-namespace", "No_Name"], "lower-case letters"),
        (["--own-namespace", "a", "--listen", "localhost:1"], "write tcp://HOST:PORT"),
        (["--own-namespace", "a", "--lease-renewal", "6"], "lower it or raise the duration"),
        (["--own-namespace", "a", "--lease-duration", "15.5"], "whole seconds"),
        (["--own-namespace", "a", "--lease-duration", "-1"], "seconds above 0"),
        (["--own-namespace", "a", "--daemon-command", ""], "it is empty"),
        (["--own-namespace", "a", "--model-root", "models"], "absolute path"),
        (["--own-namespace", "a", "--model-root", "/a/../b"], "without .."),
        (["--own-namespace", "a", "--probes", "8081"], "give HOST:PORT"),
        (["--own-namespace", "a", "--daemon-metrics-port", "99999"], "1 to 65535"),
        (["--own-namespace", "a", "--daemon-user", "root"], "give 0 for root"),
        (["--own-namespace", "a", "--pod-monitors"], "set --daemon-metrics-port"),
        (["--own-namespace", "a", "--pod-monitor-interval", "soon"], "like 30s"),
        (["--own-namespace", "a", "--pod-monitor-label", "release"], "KEY=VALUE"),
    ],
)
def test_a_setting_that_is_off_is_named_with_its_cure(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_deployment_of_the_manifests_is_told_what_it_needs() -> None:
    manifests = Path(__file__).parents[3] / "operator" / "manifests" / "cluster-wide" / "operator.yaml"
    service, deployment = yaml.safe_load_all(manifests.read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = {"$(NAMESPACE)": "kvgrove-system", "$(POD_NAME)": "operator-0"}
    arguments = []
    for argument in container["args"]:
        flag, _, value = argument.partition("=")
        arguments += [flag, given.get(value, value)]
    settings = parse(arguments)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.listen.endswith(f":{ports['fleet']}")
    assert settings.probes == ("0.0.0.0", ports["probes"])  # noqa: S104 - in a Pod of its own
    assert settings.metrics == ("0.0.0.0", ports["metrics"])  # noqa: S104
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert settings.daemons.control == f"tcp://{host}:{service['spec']['ports'][0]['port']}"
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()

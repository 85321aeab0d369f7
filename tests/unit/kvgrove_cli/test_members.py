"""The command lines of members are such as the members take."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvgrove_cli import key_folders
from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.members import FleetShape, Member, members_of
from kvgrove_cli.state_dir import StateDir
from kvgrove_daemon import settings as daemon_settings
from kvgrove_gateway import settings as gateway_settings
from kvgrove_protocol.control import DAEMON


def members(shape: FleetShape, state: Path) -> list[Member]:
    key_folders.ensure(state / "link-keys")
    return list(members_of(shape, StateDir(state), control="tcp://127.0.0.1:1", keys=state / "keys.yaml"))


def arguments(member: Member) -> list[str]:
    """Without interpreter and module."""
    return list(member.spec.argv[3:])


def test_each_node_has_event_sockets_of_its_own_where_they_are_wanted(tmp_path: Path) -> None:
    daemons = [each for each in members(FleetShape(nodes=2, kv_events=True), tmp_path) if each.role == DAEMON]
    found = []
    for member in daemons:
        parsed = daemon_settings.parse(arguments(member)).kv_events
        assert parsed is not None
        assert member.events is not None
        assert (parsed.publish, parsed.replay) == (member.events.live, member.events.replay)
        found += [parsed.publish, parsed.replay]
    assert len(set(found)) == 4
    assert all(each.startswith(f"ipc://{tmp_path}/") for each in found)


def test_nothing_is_exported_and_no_route_told_unless_asked_for(tmp_path: Path) -> None:
    for member in members(FleetShape(), tmp_path):
        assert member.events is None
        if member.role == DAEMON:
            assert daemon_settings.parse(arguments(member)).kv_events is None
        else:
            assert not gateway_settings.parse(arguments(member)).explain_routes


def test_gateways_tell_routes_where_that_is_wanted(tmp_path: Path) -> None:
    (gateway,) = [each for each in members(FleetShape(explain_routes=True), tmp_path) if each.role != DAEMON]
    assert gateway_settings.parse(arguments(gateway)).explain_routes


def test_issuers_allowances_and_audit_logs_reach_every_gateway_that_should_have_them(tmp_path: Path) -> None:
    shape = FleetShape(gateways=2, oidc=Path("o.yaml"), rate_limits=Path("r.yaml"), audit=True)
    found = [gateway_settings.parse(arguments(each)) for each in members(shape, tmp_path) if each.role != DAEMON]
    assert {(each.oidc, each.rate_limits) for each in found} == {(Path("o.yaml").absolute(), Path("r.yaml").absolute())}
    assert len({each.audit_log for each in found} - {None}) == 2  # each has its own
    for member in members(FleetShape(), tmp_path):
        if member.role != DAEMON:
            plain = gateway_settings.parse(arguments(member))
            assert (plain.oidc, plain.rate_limits, plain.audit_log) == (None, None, None)


def test_links_have_keys_unless_plain_ones_are_asked_for(tmp_path: Path) -> None:
    for plain in (False, True):
        for member in members(FleetShape(plain_links=plain), tmp_path):
            parse = daemon_settings.parse if member.role == DAEMON else gateway_settings.parse
            keys = parse(arguments(member)).link_keys
            assert (keys is None) is plain
            if keys is not None:
                assert keys.role_of(keys.own().public) == member.role


def test_a_state_directory_too_deep_for_sockets_is_refused_by_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    with pytest.raises(UsageProblem, match="shorter --state-dir"):
        members(FleetShape(kv_events=True), deep)
    assert members(FleetShape(), deep)

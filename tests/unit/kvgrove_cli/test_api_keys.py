"""Keys are shown once and stored hashed; the gateway's own parser reads what is written here."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvgrove_cli import api_keys
from kvgrove_cli.errors import UsageProblem
from kvgrove_gateway.identity.key_ring import KeyRing


def test_a_created_key_opens_the_gateway_and_a_revoked_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    secret = api_keys.new_secret(lambda count: b"\x07" * count)
    api_keys.create(path, secret=secret, key_id="dev", tenant="acme", user="ann", scopes=["hr"])
    ring = KeyRing(path, on_failure=lambda: None, now=lambda: 0.0)
    identity = ring.find(secret)
    assert identity is not None
    assert (identity.caller.tenant, identity.caller.user, identity.caller.scopes) == ("acme", "ann", ("hr",))
    assert identity.may_name("any/namespace")

    api_keys.revoke(path, "dev")
    assert asyncio.run(ring.refresh())
    assert len(ring) == 0


def test_the_secret_is_not_in_the_file_and_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keys.yaml"
    secret = api_keys.new_secret()
    api_keys.create(path, secret=secret, key_id="a", tenant="t")
    text = path.read_text()
    assert secret not in text
    assert secret.removeprefix(api_keys.KEY_PREFIX) not in text
    assert hashlib.sha256(secret.encode()).hexdigest() in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_namespaces_left_out_and_none_at_all_differ(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    api_keys.create(path, secret="open", key_id="open", tenant="t")
    api_keys.create(path, secret="shut", key_id="shut", tenant="t", namespaces=[])
    ring = KeyRing(path, on_failure=lambda: None, now=lambda: 0.0)
    opened, shut = ring.find("open"), ring.find("shut")
    assert opened is not None
    assert shut is not None
    assert opened.may_name("shop/assistant")
    assert not shut.may_name("shop/assistant")


def test_a_rotated_key_works_until_its_time_is_over_and_the_new_one_speaks_for_the_same_caller(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    api_keys.create(
        path, secret="one", key_id="app", tenant="t", user="u", scopes=["s"], namespaces=["a/b"], operator=True
    )
    ends = datetime(2027, 1, 15, 8, tzinfo=UTC)
    assert api_keys.rotate(path, "app", secret="two", until=ends) == "app.2"
    now = [ends.timestamp() - 1]
    ring = KeyRing(path, on_failure=lambda: None, now=lambda: now[0])
    old, new = ring.find("one"), ring.find("two")
    assert old is not None
    assert new is not None
    assert dataclasses.replace(new, key_id="app") == old
    now[0] += 1
    assert ring.find("one") is None
    assert ring.find("two") is not None
    assert api_keys.rotate(path, "app.2", secret="three", until=None) == "app.3"
    assert [key.id for key in api_keys.read(path)] == ["app", "app.3"]
    assert api_keys.rotate(path, "app", secret="four", until=ends.replace(year=2030)) == "app.2"
    assert api_keys.read(path)[0].expires == ends  # rotating once more lengthens nothing
    with pytest.raises(UsageProblem, match="no key 'nobody'"):
        api_keys.rotate(path, "nobody", secret="x", until=None)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"key_id": "", "tenant": "t"}, "id"), ({"key_id": "a", "tenant": ""}, "tenant")],
)
def test_an_unusable_field_is_named(tmp_path: Path, fields: dict[str, str], named: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        api_keys.create(tmp_path / "keys.yaml", secret="s", **fields)
    assert caught.value.field == named
    assert not (tmp_path / "keys.yaml").exists()


def test_an_id_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    api_keys.create(path, secret="one", key_id="dev", tenant="t")
    with pytest.raises(UsageProblem, match="already"):
        api_keys.create(path, secret="two", key_id="dev", tenant="t")
    assert len(api_keys.read(path)) == 1


def test_a_missing_or_broken_file_says_so_and_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    with pytest.raises(UsageProblem, match="no such file"):
        api_keys.revoke(path, "dev")
    path.write_text("keys: [{id: dev}]\n")
    with pytest.raises(UsageProblem, match=r"keys\.0\.sha256"):
        api_keys.create(path, secret="s", key_id="other", tenant="t")
    assert path.read_text() == "keys: [{id: dev}]\n"


def test_revoking_an_unknown_id_names_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    api_keys.create(path, secret="one", key_id="dev", tenant="t")
    with pytest.raises(UsageProblem, match="known: dev"):
        api_keys.revoke(path, "prod")

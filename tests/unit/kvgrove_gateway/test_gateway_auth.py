"""Keys: hashed, reloaded, and the one source of identity."""

import hashlib
from pathlib import Path

import pytest

from kvgrove_gateway.auth import BrokenKeyFile, KeyRing, parse_keys
from kvgrove_gateway.errors import Unauthorized


def entry(key: str, tenant: str, *more: str) -> str:
    lines = [f"- id: {tenant}-{key}", f"sha256: {hashlib.sha256(key.encode()).hexdigest()}", f"tenant: {tenant}", *more]
    return "\n  ".join(lines)


def write(path: Path, *entries: str) -> None:
    path.write_text("keys:\n" + "\n".join(entries) + "\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    write(path, entry("k1", "acme", "user: ann", "scopes: [legal, hr]", "namespaces: [team/bot]"), entry("k2", "other"))
    return path


def ring(path: Path) -> tuple[KeyRing, list[int]]:
    failures: list[int] = []
    return KeyRing(path, on_failure=lambda: failures.append(1)), failures


def test_a_key_gives_its_identity(file: Path) -> None:
    keys, _ = ring(file)
    identity = keys.identify("Bearer k1")
    assert (identity.caller.tenant, identity.caller.user, identity.caller.scopes) == ("acme", "ann", ("hr", "legal"))
    assert identity.may_name("team/bot")
    assert not identity.may_name("team/other")
    assert keys.identify("bearer k2").may_name("anything/else")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic k1", "k1", "Bearer K1", "Bearer " + "k" * 10_000]
)
def test_anything_else_is_refused(file: Path, header: str | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        ring(file)[0].identify(header)
    assert caught.value.status == 401


def test_the_digest_itself_is_no_key(file: Path) -> None:
    with pytest.raises(Unauthorized):
        ring(file)[0].identify("Bearer " + hashlib.sha256(b"k1").hexdigest())


def test_a_change_is_taken_over(file: Path) -> None:
    keys, failures = ring(file)
    assert not keys.refresh()
    write(file, entry("k3", "acme"))
    assert keys.refresh()
    assert keys.identify("Bearer k3").caller.tenant == "acme"
    with pytest.raises(Unauthorized):
        keys.identify("Bearer k1")
    assert failures == []


def test_a_broken_file_keeps_the_last_good_one_and_is_counted_once(file: Path) -> None:
    keys, failures = ring(file)
    good = file.read_text()
    file.write_text("keys: [{id: x, sha256: short, tenant: t}]")
    assert not keys.refresh()
    assert not keys.refresh()
    assert keys.identify("Bearer k1").key_id == "acme-k1"
    assert len(failures) == 1
    file.unlink()
    assert not keys.refresh()
    assert len(failures) == 2
    file.write_text(good)
    assert not keys.refresh()
    assert keys.identify("Bearer k2").caller.tenant == "other"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "keys"),
        ("keys: [", "YAML"),
        ("keys: {}", "keys"),
        ("keys: [{id: a, sha256: zz, tenant: t}]", "keys.0.sha256"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}'}}]", "keys.0.tenant"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: ''}}]", "keys.0.tenant"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: t, role: admin}}]", "keys.0.role"),
        ("keys: [!!python/object/apply:os.system [id]]", "YAML"),
        ("keys: 2026-13-01", "quotes"),
        ("keys: 0x_", "quotes"),
        ("keys: !!bool maybe", "quotes"),
        ("keys: !!timestamp soon", "quotes"),
        ("keys: " + "[" * 5_000 + "]" * 5_000, "deeply"),
    ],
)
def test_broken_files_name_the_field_and_not_the_value(text: str, names: str) -> None:
    with pytest.raises(BrokenKeyFile) as caught:
        parse_keys(text.encode())
    assert names in caught.value.message or names == "keys"
    assert "zz" not in caught.value.message


def test_the_same_key_twice_is_refused() -> None:
    one = f"{{id: a, sha256: '{'0' * 64}', tenant: t}}"
    with pytest.raises(BrokenKeyFile, match=r"keys\.1"):
        parse_keys(f"keys: [{one}, {one.replace('id: a', 'id: b')}]".encode())


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenKeyFile, match=r"nowhere\.yaml: No such file"):
        ring(tmp_path / "nowhere.yaml")

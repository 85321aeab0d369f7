"""API keys: hashed, read again when the file is another one, refused at once when they are gone or have expired."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from kvgrove_gateway.errors import Unauthorized
from kvgrove_gateway.identity.authenticator import Authenticator, credential
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.identity.files import BrokenFile, WatchedFile
from kvgrove_gateway.identity.key_file import parse_keys
from kvgrove_gateway.identity.key_ring import KeyRing

NOW = 1_800_000_000.0


def entry(key: str, tenant: str, *more: str) -> str:
    lines = [f"- id: {tenant}-{key}", f"sha256: {hashlib.sha256(key.encode()).hexdigest()}", f"tenant: {tenant}", *more]
    return "\n  ".join(lines)


def write(path: Path, *entries: str) -> None:
    path.write_text("keys:\n" + "\n".join(entries) + "\n")


def replace(path: Path, *entries: str) -> None:
    """As `kvgrove keys` and a mounted Secret do it."""
    fresh = path.with_name("fresh.yaml")
    write(fresh, *entries)
    fresh.replace(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    write(path, entry("k1", "acme", "user: ann", "scopes: [legal, hr]", "namespaces: [team/bot]"), entry("k2", "other"))
    return path


def ring(path: Path, now: list[float] | None = None) -> tuple[KeyRing, list[int]]:
    failures: list[int] = []
    time = now if now is not None else [NOW]
    return KeyRing(path, on_failure=lambda: failures.append(1), now=lambda: time[0]), failures


def found(keys: KeyRing, key: str) -> Identity:
    identity = keys.find(key)
    assert identity is not None
    return identity


def headers(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


def test_a_key_gives_its_identity(file: Path) -> None:
    keys, _ = ring(file)
    identity = found(keys, "k1")
    assert (identity.caller.tenant, identity.caller.user, identity.caller.scopes) == ("acme", "ann", ("hr", "legal"))
    assert identity.may_name("team/bot")
    assert not identity.may_name("team/other")
    assert not any((identity.operator, identity.monitor, identity.explain))
    assert found(keys, "k2").may_name("anything/else")


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Basic k1")],
        [("authorization", "k1")],
        [("authorization", "Bearer K1")],
        [("authorization", "Bearer " + "k" * 10_000)],
        [("x-api-key", "")],
        [("x-api-key", "k3")],
        [("authorization", "Bearer k1"), ("x-api-key", "k2")],
        [("authorization", "Bearer k1"), ("authorization", "Bearer k2")],
        [("x-tenant", "acme"), ("x-user", "ann"), ("x-forwarded-user", "ann")],
        [("cookie", "key=k1")],
    ],
)
def test_anything_else_is_refused(file: Path, sent: list[tuple[str, str]]) -> None:
    door = Authenticator(ring(file)[0], None)
    with pytest.raises(Unauthorized) as caught:
        asyncio.run(door.identify(headers(*sent)))
    assert caught.value.status == 401
    assert "k1" not in caught.value.message


def test_both_headers_are_read_and_may_say_the_same(file: Path) -> None:
    door = Authenticator(ring(file)[0], None)
    for sent in (
        [("Authorization", "bearer  k1 ")],
        [("X-API-Key", "k1")],
        [("authorization", "Bearer k1"), ("x-api-key", "k1")],
    ):
        assert asyncio.run(door.identify(headers(*sent))).key_id == "acme-k1"


def test_the_digest_itself_is_no_key(file: Path) -> None:
    assert ring(file)[0].find(hashlib.sha256(b"k1").hexdigest()) is None


def test_look_ups_are_by_a_secret_of_the_process(file: Path) -> None:
    """What a look-up's time could tell is of values that mean nothing elsewhere."""
    digests = {hashlib.sha256(key).digest() for key in (b"k1", b"k2")}
    tables = [set(ring(file)[0]._file.value) for _ in range(2)]
    assert len(tables[0]) == 2
    assert tables[0].isdisjoint(tables[1])
    assert tables[0].isdisjoint(digests)


def test_a_revoked_key_is_refused_from_the_next_request_on(file: Path) -> None:
    keys, failures = ring(file)
    assert asyncio.run(keys.identify("k1")) is not None
    replace(file, entry("k3", "acme"))
    assert asyncio.run(keys.identify("k1")) is None
    assert found(keys, "k3").caller.tenant == "acme"
    assert failures == []


def test_nobody_goes_by_the_old_keys_while_the_new_ones_are_read(tmp_path: Path) -> None:
    """Another request that begins meanwhile must see that the file was replaced, and wait."""
    path = tmp_path / "watched"
    path.write_bytes(b"old")
    seen: list[bool] = []

    def parse(content: bytes) -> bytes:
        if content != b"old":
            seen.append(file.replaced())
        return content

    file = WatchedFile(path, parse, what="file", on_failure=lambda: None)
    path.with_name("new").write_bytes(b"new one")
    path.with_name("new").replace(path)
    assert file.replaced()
    assert file.refresh()
    assert (seen, file.replaced()) == ([True], False)


def test_a_change_that_leaves_no_trace_outside_is_found_by_looking_in(file: Path) -> None:
    keys, _ = ring(file)
    assert not asyncio.run(keys.refresh())
    keys._file._signature = None
    before = os.stat(file)
    text = file.read_text()
    file.write_text(text.replace("other-k2", "other-k9"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert asyncio.run(keys.refresh())
    assert found(keys, "k2").key_id == "other-k9"


def test_an_expired_key_is_refused(file: Path) -> None:
    write(
        file,
        entry("k1", "acme", "expires: 2027-01-15T08:00:00Z"),
        entry("k2", "acme", "expires: '2027-01-15T09:00+01:00'"),
    )
    now = [NOW]  # 2027-01-15T08:00:00Z
    keys, _ = ring(file, now)
    assert keys.find("k1") is None
    assert keys.find("k2") is None
    now[0] -= 1
    assert found(keys, "k1").key_id == "acme-k1"
    assert found(keys, "k2").key_id == "acme-k2"


def test_operators_are_monitors_too(file: Path) -> None:
    write(file, entry("o", "ops", "operator: true"), entry("m", "ops", "monitor: true"))
    keys, _ = ring(file)
    assert (found(keys, "o").operator, found(keys, "o").monitor) == (True, True)
    assert (found(keys, "m").operator, found(keys, "m").monitor) == (False, True)


def test_a_broken_file_keeps_the_last_good_one_and_is_counted_once(file: Path) -> None:
    keys, failures = ring(file)
    good = file.read_text()
    file.write_text("keys: [{id: x, sha256: short, tenant: t}]")
    assert not asyncio.run(keys.refresh())
    assert not asyncio.run(keys.refresh())
    assert asyncio.run(keys.identify("k1")) is not None
    assert len(failures) == 1
    file.unlink()
    assert not asyncio.run(keys.refresh())
    assert len(failures) == 2
    file.write_text(good)
    assert not asyncio.run(keys.refresh())
    assert found(keys, "k2").caller.tenant == "other"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "the file"),
        ("keys: [", "YAML"),
        ("keys: {}", "keys"),
        ("keys: [{id: a, sha256: zz, tenant: t}]", "keys.0.sha256"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}'}}]", "keys.0.tenant"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: ''}}]", "keys.0.tenant"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: t, role: admin}}]", "keys.0.role"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: t, operator: 'yes'}}]", "keys.0.operator"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: t, expires: zz}}]", "keys.0.expires"),
        (f"keys: [{{id: a, sha256: '{'0' * 64}', tenant: t, expires: 2027-01-01T00:00:00}}]", "keys.0.expires"),
        ("keys: [!!python/object/apply:os.system [id]]", "YAML"),
        ("keys: 2026-13-01", "quotes"),
        ("keys: 0x_", "quotes"),
        ("keys: !!bool maybe", "quotes"),
        ("keys: !!timestamp soon", "quotes"),
        ("keys: " + "[" * 5_000 + "]" * 5_000, "deeply"),
    ],
)
def test_broken_files_name_the_field_and_not_the_value(text: str, names: str) -> None:
    with pytest.raises(BrokenFile) as caught:
        parse_keys(text.encode())
    assert names in caught.value.message
    assert "zz" not in caught.value.message


def test_the_same_key_twice_is_refused() -> None:
    one = f"{{id: a, sha256: '{'0' * 64}', tenant: t}}"
    for other in (one.replace("id: a", "id: b"), one.replace("000", "111")):
        with pytest.raises(BrokenFile, match=r"keys\.1"):
            parse_keys(f"keys: [{one}, {other}]".encode())


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenFile, match=r"nowhere\.yaml: No such file"):
        ring(tmp_path / "nowhere.yaml")


def test_credentials_come_from_their_headers_only() -> None:
    assert credential(headers(("Authorization", "Bearer a b"))) == "a b"
    with pytest.raises(Unauthorized) as caught:
        credential(headers(("proxy-authorization", "Bearer a")))
    assert caught.value.code == "missing_api_key"

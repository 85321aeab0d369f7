"""The start-up self-test passes as things are, and names what is broken whichever way they are broken (ISO-07)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvgrove_daemon import prompts
from kvgrove_daemon.node import Node
from kvgrove_daemon.self_test import SelfTestFailed, prove_isolation
from kvgrove_daemon.settings import parse
from kvgrove_protocol import chain, identity
from kvgrove_protocol.chain import Span
from kvgrove_protocol.identity import Caller, Isolation, RealmInputs


def test_iso_07_five_callers_are_five_misses_and_then_five_hits() -> None:
    prove_isolation()


def private_realm_never_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    right = prompts.marks

    def marks(spans: Sequence[Span], private_realm: bytes, block_size: int) -> Any:
        return right(spans, b"the same for all", block_size)

    monkeypatch.setattr(prompts, "marks", marks)


def user_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RealmInputs.private_realm

    def private_realm(
        self: RealmInputs, isolation: Isolation, caller: Caller, *, throwaway: Callable[[], bytes]
    ) -> bytes:
        return right(
            self, isolation, Caller(tenant=caller.tenant, user="", scopes=caller.scopes), throwaway=lambda: b"0"
        )

    monkeypatch.setattr(RealmInputs, "private_realm", private_realm)


def levels_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_level_fields", lambda _isolation, caller: {"tenant": caller.tenant})


def nameless_callers_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    right = identity._level_fields
    monkeypatch.setattr(identity, "_level_fields", lambda isolation, caller: right(isolation, caller) or {})


def document_epoch_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = chain.encode

    def encode(entries: Any) -> bytes:
        return right([entry[:3] for entry in entries])

    monkeypatch.setattr(chain, "encode", encode)


def purge_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealmInputs, "shared_realm", lambda self: identity.digest("realm", [self.namespace_uid]))


def nothing_is_ever_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = prompts.marks
    once = iter(range(1000))
    monkeypatch.setattr(prompts, "marks", lambda spans, _realm, size: right(spans, b"%d" % next(once), size))


@pytest.mark.parametrize(
    "broken",
    [
        private_realm_never_folded,
        user_left_out,
        levels_ignored,
        nameless_callers_in_common,
        document_epoch_left_out,
        purge_left_out,
        nothing_is_ever_reused,
    ],
)
def test_iso_07_a_node_whose_plumbing_has_no_effect_does_not_start(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken(monkeypatch)
    state = tmp_path / "state"
    where = [
        "--control",
        "tcp://127.0.0.1:1",
        "--listen",
        "tcp://127.0.0.1:0",
        "--state-dir",
        str(state),
        "--plain-links",
    ]
    settings = parse(["--member", "n", *where])
    with pytest.raises(SelfTestFailed) as caught:
        Node(settings)
    assert caught.value.code == "isolation_self_test_failed"
    assert "start-up self-test" in caught.value.message
    assert not state.exists()  # it fails before anything else is touched

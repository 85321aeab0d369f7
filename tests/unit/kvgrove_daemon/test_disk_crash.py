"""A process that is really killed at every write boundary of the disk tier, with and without a loss of power."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from disk_rig import (
    NEXT_SECRET,
    OTHER_UID,
    ROOT,
    SECRET,
    UID,
    adopt_all,
    body_of,
    chain,
    extents_in,
    open_disk,
)

from kvgrove_daemon.cache.tiers.disk import Cause, DiskMedium
from kvgrove_daemon.cache.tiers.medium import Facts, MediumCorrupt

SUPPORT = Path(__file__).parents[2] / "support"
LOSSES = ("none", "bytes", "names", "all", "oldest")
OURS, THEIRS = chain(6), chain(3, seed=1, namespace=OTHER_UID)


class Death(NamedTuple):
    """What one child left."""

    directory: Path
    acknowledged: list[str]
    before: Path
    attic: Path


def deaths(base: Path, scenario: str, loss: str, at_least: int) -> Iterator[Death]:
    """Every way to die in ``scenario``, the last one being not to."""
    command = [sys.executable, str(SUPPORT / "disk_crash.py"), str(base), scenario, loss]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) > at_least, "fewer boundaries than the operation has: the adapter does not watch it"
    assert [line["killed"] for line in lines] == [True] * (len(lines) - 1) + [False]
    for line in lines:
        name = str(line["stop"])
        yield Death(base / name, line["acknowledged"], base / f"before-{name}", base / f"attic-{name}")


def restarted(directory: Path, secret: bytes = SECRET, former: bytes = b"") -> DiskMedium:
    disk = open_disk(directory)
    assert not list(directory.glob("*.draft"))
    for namespace in (UID, OTHER_UID):
        disk.set_secret(namespace, secret, former)
    return disk


def adopted_whole(disk: DiskMedium) -> list[Facts]:
    """All that is adopted, having read each of them right."""
    adopted = adopt_all(disk)
    for slot, facts in adopted.items():
        assert disk.read(slot, facts) == body_of(facts)
    return list(adopted.values())


def assert_no_trace(of: Facts, death: Death) -> None:
    """Its file has gone for good, and neither its wrapped key nor its end is in any other, unlinked ones included."""
    with_copy = restarted(death.before)
    extents = {survivor.facts: survivor.extent.header for survivor in with_copy.survey(of.namespace, {ROOT})}
    path = with_copy._shelf.files.path(extents[of].extent)
    sealed = path.read_bytes()
    with_copy.close()
    assert not (death.directory / path.name).exists()
    for path in [*death.directory.rglob("*"), *death.attic.rglob("*")]:
        if path.is_file():
            found = path.read_bytes()
            assert sealed[4096:8192] not in found
            assert sealed[-64:] not in found


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_acknowledged_as_written_is_adopted_and_nothing_partial_is(tmp_path: Path, loss: str) -> None:
    for death in deaths(tmp_path, "write", loss, at_least=30):
        disk = restarted(death.directory)
        adopted = adopted_whole(disk)
        written = max((int(line.split()[1]) for line in death.acknowledged), default=0)
        assert adopted[:written] == OURS[:written]
        assert adopted == OURS[: len(adopted)]
        disk.write_many([(8 + facts.depth, facts, body_of(facts)) for facts in OURS[len(adopted) :]])
        disk.close()
        again = restarted(death.directory)
        assert adopted_whole(again) == OURS
        again.close()


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_acknowledged_as_erased_is_gone_and_the_rest_is_there(tmp_path: Path, loss: str) -> None:
    erased = {"erased 3": [OURS[3]], "erased 1": OURS[1:3], "namespace erased": THEIRS}
    for death in deaths(tmp_path, "erase", loss, at_least=25):
        gone = [facts for line in death.acknowledged for facts in erased[line]]
        for facts in gone:
            assert_no_trace(facts, death)
        disk = restarted(death.directory)
        adopted = adopted_whole(disk)
        assert adopted[:1] == OURS[:1]
        assert not set(adopted) & set(gone)
        assert "namespace erased" not in death.acknowledged or OTHER_UID not in disk.namespaces()
        disk.erase_namespace(UID)
        disk.erase_namespace(OTHER_UID)
        assert disk.namespaces() == set()
        assert extents_in(death.directory) == []
        disk.close()


@pytest.mark.parametrize("loss", LOSSES)
def test_survivors_of_a_rewrap_open_at_every_moment_and_never_by_the_old_secret_after_it(
    tmp_path: Path, loss: str
) -> None:
    for death in deaths(tmp_path, "rewrap", loss, at_least=20):
        if "rewrapped" in death.acknowledged:
            by_old = restarted(death.directory, SECRET)
            assert by_old.survey(UID, {ROOT}) == []
            assert by_old.state().files == {Cause.SECRET: 3}
            by_old.close()
        disk = restarted(death.directory, NEXT_SECRET, SECRET)
        adopted = adopted_whole(disk)
        assert adopted[:3] == OURS[:3]
        if "erased 3" in death.acknowledged:
            assert adopted == OURS[:3]
            assert_no_trace(OURS[3], death)
        counts = disk.rewrap(UID, SECRET, NEXT_SECRET)
        assert counts.done + counts.already == len(adopted)
        assert "rewrapped" not in death.acknowledged or counts.done == 0
        disk.close()
        by_new = restarted(death.directory, NEXT_SECRET)
        assert adopted_whole(by_new) == adopted
        by_new.close()


@pytest.mark.parametrize("loss", LOSSES)
def test_bad_files_are_set_aside_or_found_again_and_never_read(tmp_path: Path, loss: str) -> None:
    for death in deaths(tmp_path, "set_aside", loss, at_least=12):
        disk = restarted(death.directory)
        assert {path.name for path in death.directory.iterdir()} - {"lock", "set-aside"} == {
            path.name for path in extents_in(death.directory)
        }
        survivors = {namespace: disk.survey(namespace, {ROOT}) for namespace in (UID, OTHER_UID)}
        for first, namespace in ((0, UID), (8, OTHER_UID)):
            for slot, survivor in enumerate(survivors[namespace], first):
                assert disk.adopt(slot, survivor)
                try:
                    assert disk.read(slot, survivor.facts) == body_of(survivor.facts)
                except MediumCorrupt:
                    assert disk.state().files[Cause.CORRUPT] > 0
        if loss == "none" and "read" in death.acknowledged:
            assert survivors == {UID: [], OTHER_UID: []}
        assert 0 < disk.state().set_aside <= 16
        disk.close()

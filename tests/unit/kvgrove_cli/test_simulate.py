"""Simulated routing: real router, real caches, simulated bytes and time."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvgrove_cli.commands.simulate import simulate
from kvgrove_cli.commands.trace import capacity_blocks
from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.simulate.policies import MAKERS
from kvgrove_cli.simulate.workload import read_arrivals
from kvgrove_cli.trace.formats import read_trace
from kvgrove_cli.trace.replay import replay

COMMAND: click.Command = simulate


def conversations(path: Path, *, count: int = 37, turns: int = 6) -> Path:
    """All share block 0; each conversation grows by two blocks a turn."""
    lines = []
    for turn in range(turns):
        for each in range(count):
            blocks = [0, *(1000 * (each + 1) + at for at in range(2 * turn + 2))]
            at_ms = (turn * count + each) * 400
            lines.append({"timestamp": at_ms, "input_length": 512 * len(blocks), "hash_ids": blocks})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*arguments: str) -> object:
    ended = CliRunner().invoke(COMMAND, [*arguments, "--json"], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def row(*arguments: str) -> dict[str, float]:
    printed = run(*arguments)
    assert isinstance(printed, dict)
    return printed


def test_every_policy_has_its_row_and_the_longest_match_alone_collapses(tmp_path: Path) -> None:
    printed = run(str(conversations(tmp_path / "t")), "--policy", "all", "--split", "100%")
    assert isinstance(printed, list)
    rows = {each["policy"]: each for each in printed}
    assert list(rows) == list(MAKERS)
    assert rows["longest-match"]["imbalance"] == 8.0  # everybody has block 0 there, and nobody elsewhere
    assert rows["ours"]["token_hit_ratio"] > 2 * rows["round-robin"]["token_hit_ratio"]
    assert rows["ours"]["imbalance"] < 1.5  # where there is room, the shared block is followed
    assert rows["ours"]["wait_p95_s"] <= rows["least-loaded"]["wait_p95_s"]
    assert rows["ours"]["ttft_p95_s"] < rows["least-loaded"]["ttft_p95_s"]


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    path = str(conversations(tmp_path / "t"))
    assert run(path, "--policy", "random") == run(path, "--policy", "random")
    assert run(path, "--policy", "random") != run(path, "--policy", "random", "--seed", "2")


def test_a_replay_over_several_nodes_gives_the_same_figures(tmp_path: Path) -> None:
    path = conversations(tmp_path / "t")
    simulated = row(str(path), "--nodes", "4", "--split", "50%")
    loaded = read_trace(path, seed=1)
    blocks = capacity_blocks("50%", loaded.unique_blocks, 4)
    replayed = replay(loaded, policy="cost-aware", capacity_blocks=blocks, nodes=4)
    assert replayed.token_hit_ratio == pytest.approx(simulated["token_hit_ratio"])
    assert replayed.imbalance == pytest.approx(simulated["imbalance"])


def test_one_row_is_the_mean_of_its_seeds(tmp_path: Path) -> None:
    both = row(str(conversations(tmp_path / "t")), "--policy", "random", "--seed", "1", "--seed", "2")
    ratios = [each["token_hit_ratio"] for each in both["runs"]]  # type: ignore[attr-defined]
    assert both["token_hit_ratio"] == pytest.approx(sum(ratios) / 2)


def test_trouble_costs_hits_and_no_request(tmp_path: Path) -> None:
    path = str(conversations(tmp_path / "t"))
    calm = row(path, "--split", "100%")
    for trouble in (["--restart-node", "50%"], ["--rollout", "50%"], ["--restart-gateway", "40"]):
        hurt = row(path, "--split", "100%", *trouble)
        assert hurt["requests"] == calm["requests"]
        assert hurt["token_hit_ratio"] <= calm["token_hit_ratio"] + 0.02  # so short a trace: some fare better by chance
    alone = ["--nodes", "1", "--split", "100%"]  # no chance in who is placed where
    assert row(path, *alone, "--rollout", "50%")["token_hit_ratio"] < row(path, *alone)["token_hit_ratio"]
    assert row(path, "--split", "10%", "--lose-evictions", "1")["requests"] == calm["requests"]


def test_arrivals_of_another_recording_are_stretched_over_the_trace(tmp_path: Path) -> None:
    path, burst = str(conversations(tmp_path / "t")), tmp_path / "a.csv"
    burst.write_text(
        "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.9799600,1\n"
        + "".join(f"2023-11-16 18:17:04.{at:07d},1\n" for at in range(1, 60))
        + "2023-11-16 18:18:03,1\n"
    )
    assert row(path, "--arrivals", str(burst))["wait_p95_s"] > row(path)["wait_p95_s"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--split", "0%"], ["--split"]),
        (["--restart-node", "soon"], ["--restart-node", "50%"]),
        (["--rollout", "99999999"], ["--rollout", "after the last"]),
        (["--plot", "x.pdf"], ["--plot", ".svg"]),
        (["--arrivals", "none.csv"], ["--arrivals", "No such file"]),
    ],
)
def test_what_cannot_be_done_is_refused_by_option_and_cure(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(UsageProblem) as refusal:
        CliRunner().invoke(COMMAND, [str(conversations(tmp_path / "t")), *arguments], catch_exceptions=False)
    assert all(word in refusal.value.message for word in words), refusal.value.message


def test_a_broken_arrival_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("TIMESTAMP\n2023-11-16 18:17:03.97\nyesterday\n")
    with pytest.raises(UsageProblem, match="line 3: TIMESTAMP: 'yesterday'"):
        read_arrivals(tmp_path / "a.csv")


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row(str(conversations(tmp_path / "t")), "--plot", str(tmp_path / "p.svg"))
    assert (tmp_path / "p.svg").read_text().lstrip().startswith("<?xml")

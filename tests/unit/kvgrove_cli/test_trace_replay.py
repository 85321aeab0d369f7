"""Traces are read exactly, refused by line and field, and replayed through the real cache."""

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvgrove_cli.commands.trace import capacity_blocks, trace
from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.trace.coding_sample import Session, Turn, sample
from kvgrove_cli.trace.formats import read_trace
from kvgrove_cli.trace.replay import replay
from kvgrove_daemon.cache.eviction import POLICIES

TABLE = {
    ("mooncake_conversation_trace.jsonl", "5%"): 0.200,
    ("mooncake_conversation_trace.jsonl", "10%"): 0.284,
    ("claude_code_sessions.jsonl", "1%"): 0.137,
    ("claude_code_sessions.jsonl", "10%"): 0.842,
}


def mooncake(path: Path, *prompts: tuple[int, list[int]]) -> Path:
    lines = [
        {"timestamp": at * 1000, "input_length": tokens, "output_length": 1, "hash_ids": ids}
        for at, (tokens, ids) in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_partial_last_block_can_be_hit_and_counts_its_tokens_alone(tmp_path: Path, policy: str) -> None:
    loaded = read_trace(mooncake(tmp_path / "t", (600, [7, 8]), (600, [7, 8]), (1100, [7, 9, 10])), seed=1)
    outcome = replay(loaded, policy=policy, capacity_blocks=4, nodes=1)
    assert (outcome.requests, outcome.unique_blocks, outcome.hit_tokens, outcome.evictions) == (3, 4, 600 + 512, 0)
    assert outcome.token_hit_ratio == (600 + 512) / 2300


def test_the_pool_holds_exactly_its_capacity_and_lru_gives_up_the_oldest(tmp_path: Path) -> None:
    one = [(512, [n]) for n in (1, 2, 3, 1, 2, 3)]
    loaded = read_trace(mooncake(tmp_path / "t", *one), seed=1)
    assert replay(loaded, policy="lru", capacity_blocks=3, nodes=1).hit_tokens == 3 * 512
    short = replay(loaded, policy="lru", capacity_blocks=2, nodes=1)
    assert (short.hit_tokens, short.evictions) == (0, 4)


def test_a_request_longer_than_the_pool_is_counted_and_stored_as_far_as_it_fits(tmp_path: Path) -> None:
    loaded = read_trace(mooncake(tmp_path / "t", (512, [1]), (1536, [2, 3, 4]), (1536, [2, 3, 4])), seed=1)
    outcome = replay(loaded, policy="lru", capacity_blocks=2, nodes=1)
    assert (outcome.cut_requests, outcome.hit_tokens) == (2, 1024)


def test_nodes_share_the_capacity_and_a_prefix_goes_where_it_lies(tmp_path: Path) -> None:
    prompts = [(1024, [n % 4 * 10, n % 4 * 10 + 1]) for n in range(40)]
    loaded = read_trace(mooncake(tmp_path / "t", *prompts), seed=1)
    outcome = replay(loaded, policy="lru", capacity_blocks=8, nodes=2)
    assert (outcome.capacity_blocks, outcome.hit_tokens) == (8, 36 * 1024)


def test_coding_sessions_are_decoded_shared_and_coarsened(tmp_path: Path) -> None:
    head = {"session": "s", "block_size": 64, "shared_prefix_tokens": 700, "model": "m"}
    turns = [
        {"t": 0, "in": 1030, "out": 1, "k": 0, "n": [[1, 17]]},
        {"t": 5, "in": 1100, "out": 1, "k": 17, "n": [[18, 1]]},
    ]
    lines = [head, *turns, head | {"session": "other"}, *turns]
    path = tmp_path / "t"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    loaded = read_trace(path, seed=1)
    # 525 shared tokens are 8 fine blocks: the first coarse block is one for both, the rest is each session's own.
    first = {request.blocks[0] for request in loaded.requests}
    assert (len(loaded.requests), loaded.unique_blocks, len(first)) == (4, 7, 1)
    assert [len(request.blocks) for request in loaded.requests] == [3] * 4


def test_the_sample_is_seeded_cuts_gaps_and_takes_so_many() -> None:
    turns = [Turn(at * 3_600_000.0, 64, [1]) for at in range(200)]
    sessions = [Session("m", 64, 0, turns) for _ in range(120)]
    one, again, other = sample(sessions, seed=1), sample(sessions, seed=1), sample(sessions, seed=2)
    assert one == again
    assert one != other
    assert len(one.requests) == 100 * 150
    assert one.requests[1].at_ms - one.requests[0].at_ms <= 600_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no requests"]),
        ("hello\n", ["not a trace", "line 1"]),
        ('{"a": 1}\n', ["not a trace", "hash_ids"]),
        (
            '{"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]}\n{"timestamp": 0, "hash_ids": [1]}\n',
            ["line 2", "input_length"],
        ),
        ('{"timestamp": 0, "input_length": 600, "hash_ids": [1]}\n', ["line 1", "hash_ids", "not 2"]),
        ('{"timestamp": 0, "input_length": -5, "hash_ids": []}\n', ["line 1", "input_length"]),
        ('{"session": "s", "block_size": 60, "shared_prefix_tokens": 1, "model": "m"}\n', ["line 1", "block_size"]),
        (
            '{"session": "s", "block_size": 64, "shared_prefix_tokens": 1, "model": "m"}\n'
            '{"t": 0, "in": 64, "k": 3, "n": []}\n',
            ["line 2", "k: 3"],
        ),
    ],
)
def test_bad_files_are_refused_by_line_and_field(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(UsageProblem) as refusal:
        read_trace(path, seed=1)
    assert all(word in refusal.value.message for word in words), refusal.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="No such file"):
        read_trace(tmp_path / "none", seed=1)


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-5%", "ten", "", "1e3", "10 %", "nan%"])
def test_nonsense_capacities_are_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="--capacity"):
        capacity_blocks(text, 1000, 1)


def test_capacities() -> None:
    assert [capacity_blocks(text, 182_790, 1) for text in ("5%", "10%", "0.5%", "77")] == [9140, 18279, 914, 77]
    with pytest.raises(UsageProblem, match="8 nodes"):
        capacity_blocks("1%", 100, 8)


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    path = str(mooncake(tmp_path / "t", (512, [1]), (512, [1])))
    command: click.Command = trace
    run = CliRunner().invoke(command, ["replay", path, "--capacity", "100%", "--json"])
    assert json.loads(run.stdout)["token_hit_ratio"] == 0.5
    assert "token hit ratio" in CliRunner().invoke(command, ["replay", path, "--capacity", "1"]).stdout


@pytest.mark.parametrize(("name", "capacity"), sorted(TABLE))
def test_lru_agrees_with_an_independent_simulator(name: str, capacity: str) -> None:
    folder = os.environ.get("KVGROVE_TRACES")
    if not folder:
        pytest.skip("KVGROVE_TRACES does not name a folder with the public traces")
    loaded = read_trace(Path(folder) / name, seed=1)
    blocks = capacity_blocks(capacity, loaded.unique_blocks, 1)
    plain = replay(loaded, policy="lru", capacity_blocks=blocks, nodes=1).token_hit_ratio
    assert plain == pytest.approx(TABLE[name, capacity], abs=0.002)
    assert replay(loaded, policy="cost-aware", capacity_blocks=blocks, nodes=1).token_hit_ratio >= plain - 0.001

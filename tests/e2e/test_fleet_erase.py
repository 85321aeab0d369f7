"""An erasure declared in a manifest, from the planner through node and gateway to the evidence in the status (I8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fleets import NAMESPACE, STEP_SECONDS, RunningFleet, running_fleet

from kvgrove_cli.durable import write_atomically
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import ErasureStatus, FleetStatus, read

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

QUESTION = "My order is late, the carrier says that nobody was at home, but I was there all day long. " * 6


def reused(running: RunningFleet, tenant: str, question: str = QUESTION) -> int:
    usage = running.post(running.fleet.base_url, tenant=tenant, question=question).json()["usage"]
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens


def erasures(status: FleetStatus) -> list[ErasureStatus]:
    return status.namespace(NAMESPACE).erasures


def test_i8_a_tenant_is_erased_by_declaration_and_the_status_carries_the_receipts(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    with running_fleet(tmp_path, tiny_model("llama"), nodes=1, gateways=1) as running:
        reused(running, "acme")
        declared = reused(running, "globex", "Hello?")  # the prefix alone
        for tenant in ("acme", "globex"):
            reused(running, tenant)
            assert reused(running, tenant) > declared + 32
        file = running.manifests / "all.yaml"
        erase = "  modelVersionRef: {name: tiny}\n  privacy: {erasures: [{name: contract-ended, tenant: acme}]}\n"
        text = file.read_text().replace("  modelVersionRef: {name: tiny}\n", erase)
        write_atomically(file, text.encode())
        running.do(running.fleet.apply())

        def verified(status: FleetStatus) -> bool:
            return [each.state for each in erasures(status)] == ["Verified"]

        status = running.do(running.fleet.wait_for(verified, STEP_SECONDS))
        (erasure,) = erasures(status)
        assert (erasure.name, erasure.confirmed, erasure.pending, erasure.gone) == ("contract-ended", 2, 0, 0)
        assert erasure.places["host"] > 0
        assert {signed.receipt.member for signed in erasure.receipts} == {"node-0", "gateway-0"}
        running.do(running.fleet.ready(STEP_SECONDS))
        assert reused(running, "globex") > declared + 32
        assert reused(running, "acme") <= declared
        written = read(StateDir(tmp_path / "state").status_file)
        assert erasures(written) == [erasure]
        assert b"acme" not in msgspec.json.encode(written)
        for log in (tmp_path / "state" / "logs").glob("*.log"):
            assert "acme" not in log.read_text()

"""Whatever the OpenAPI document allows, and much that it does not, is answered: no 5xx, no hang, the shape it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from gateway_rig import OPERATOR, PATIENCE_S, stage, wait_ready
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error, response_schema_conformance

from kvgrove_protocol.control import ModelPlan, NamespacePlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

pytestmark = pytest.mark.e2e

EXAMPLES = 12
"""For each route and mode: more find more, and cost time."""
POSTED = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/explain",
    "/admin/explain",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[str]:
    with stage(tmp_path_factory.mktemp("fuzzed")) as rig:
        rig.daemon("node-0")
        address = rig.gateway("gateway-0")
        rig.wait_daemons(1)
        model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 32 << 20})
        rig.planner.issue([model], [], wait=False)
        rig.planner.wait_named()
        wait_ready(address)
        space = NamespacePlan(
            uid="uid-fuzzed",
            name="team/bot",
            model="tiny",
            tenants=["acme"],
            purge=Purge(1, b"n" * 16),
            fence=Fence(1, 1, 1),
            lease_seconds=30.0,
        )
        rig.planner.wait_leased(rig.planner.issue(list(rig.planner.models), [space]))
        yield address
        assert "Traceback" not in rig.log("gateway-0")


def test_every_route_is_described(base: str) -> None:
    document = httpx.get(f"{base}/openapi.json", timeout=PATIENCE_S).json()
    posts = {path: each["post"] for path, each in document["paths"].items() if "post" in each}
    assert set(posts) >= POSTED
    for path, operation in posts.items():
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        name = schema["$ref"].removeprefix("#/components/schemas/")
        assert document["components"]["schemas"][name]["properties"], path


def tamed(body: Any) -> Any:
    """``body`` with a model that is there, where it names one, and few tokens to generate."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("requests"), list):
        body["requests"] = [tamed(each) for each in body["requests"]]
    if isinstance(body.get("model"), str):
        body["model"] = "team/bot"
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int) and body[name] > 2:
            body[name] = 2
    if "messages" in body and "max_completion_tokens" not in body and "requests" not in body:
        body.setdefault("max_tokens", 2)
    return body


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.filterwarnings("ignore")  # the fuzzer's own, about schemas that leave it little to negate
def test_no_body_brings_a_gateway_down(base: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    cases = [operation.as_strategy(mode) for operation in operations if operation.path in POSTED]

    @settings(
        max_examples=EXAMPLES * len(cases),
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(cases))
    def judge(case: Any) -> None:
        key = OPERATOR if case.operation.path.startswith("/admin") else "ann"
        case.body = tamed(case.body)
        response = case.call(base_url=base, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S)
        case.validate_response(response, checks=[not_a_server_error])
        if response.status_code != 200 or "json" in response.headers.get("content-type", ""):
            case.validate_response(response, checks=[response_schema_conformance])

    judge()

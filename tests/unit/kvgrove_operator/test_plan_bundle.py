"""Gateways are told which bundle of tokenizer and template belongs to a generation, and how long a prompt may be."""

from __future__ import annotations

import msgspec

from kvgrove_crds.manifests import parse_manifest
from kvgrove_crds.model_version import ModelVersion
from kvgrove_operator.generations import DesiredModel, plan_models
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan_state import ModelState
from kvgrove_protocol.control import ModelReport
from kvgrove_protocol.identity import GenerationInputs

INPUTS = GenerationInputs(
    weights="sha256:w", tokenizer="sha256:t", chat_template="sha256:c", kv_dtype="float32", block_size=32
)
OTHER = msgspec.structs.replace(INPUTS, tokenizer="sha256:other")


def planned(observed: Observed, before: dict[str, ModelState]) -> ModelState:
    document = {
        "apiVersion": "kvgrove.dev/v1alpha1",
        "kind": "ModelVersion",
        "metadata": {"name": "m1"},
        "spec": {"source": {"hostPath": {"path": "/models/m1"}}},
    }
    resource = parse_manifest(document, source="test")
    assert isinstance(resource, ModelVersion)
    return plan_models([DesiredModel(resource, "/models/m1")], before, [], observed, {}).states["m1"]


def reporting(inputs: GenerationInputs, bundle: bytes) -> Observed:
    report = ModelReport(name="m1", state="ready", inputs=inputs, tokenizer_bundle=bundle)
    return Observed(frozenset({"node-0"}), {"m1": {"node-0": report}})


def test_the_bundle_comes_with_the_generation_and_stays_while_nodes_are_away() -> None:
    named = planned(reporting(INPUTS, b"one"), {})
    assert named.plan.tokenizer_bundle == b"one"
    away = planned(Observed(), {"m1": named})
    assert (away.plan.generation, away.plan.tokenizer_bundle) == (named.plan.generation, b"one")


def test_another_tokenizer_brings_another_bundle() -> None:
    named = planned(reporting(INPUTS, b"one"), {})
    assert planned(reporting(OTHER, b"two"), {"m1": named}).plan.tokenizer_bundle == b"two"
    assert planned(reporting(OTHER, b""), {"m1": named}).plan.tokenizer_bundle == b""


def test_the_longest_prompt_that_a_node_takes_is_told_to_gateways_and_stays_while_nodes_are_away() -> None:
    lengths = {"node-0": 0, "node-1": 2048, "node-2": 1024}
    reports = {
        node: ModelReport(name="m1", state="ready", inputs=INPUTS, max_model_len=longest)
        for node, longest in lengths.items()
    }
    named = planned(Observed(frozenset(reports), {"m1": reports}), {})
    assert (named.plan.max_model_len, named.plan.known_len) == (0, 2048)
    assert planned(Observed(), {"m1": named}).plan.known_len == 2048
    assert planned(reporting(OTHER, b"two"), {"m1": named}).plan.known_len == 0

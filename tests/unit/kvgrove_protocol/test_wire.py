"""The wire: closed unions, bounds, versions, fences (ISO-13, I3)."""

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_protocol import control, data
from kvgrove_protocol.chain import Span, SpanKind
from kvgrove_protocol.codec import MAX_FRAME_BYTES, PROTOCOL_VERSION, negotiate
from kvgrove_protocol.errors import Malformed, VersionMismatch
from kvgrove_protocol.events import EventBatch, NodeLoad, Stored, split_keys
from kvgrove_protocol.fence import Fence, Freshness
from kvgrove_protocol.identity import Caller, Purge
from kvgrove_protocol.reasons import MissReason

GENERATE = data.Generate(
    request_id="r",
    namespace_uid="u",
    generation=b"g" * 32,
    fence=Fence(1, 2, 3),
    caller=Caller(tenant="acme"),
    tokens=b"\1\0\0\0",
    spans=[Span(SpanKind.PRIVATE, 0, 1)],
    sampling=data.Sampling(temperature=0.0),
    max_new_tokens=4,
)


def test_messages_survive_the_wire() -> None:
    usage = data.Usage(prompt=3, reused=0, completion=1, missed={MissReason.NEW: 3})
    for message in (data.Done(request_id="r", finish_reason="stop", usage=usage), data.Started(
        request_id="r", reused=0, tier="host", missed={MissReason.PARTIAL_BLOCK: 3}
    ), EventBatch("b", 0, [Stored(b"k" * 64)], NodeLoad(0, 0, 0.0, 0.0, 9)), data.Explained(
        request_id="r", ranges=[data.ExplainedRange(0, 2, "host"), data.ExplainedRange(2, 3, reason=MissReason.NEW)]
    )):  # fmt: skip
        assert data.TO_GATEWAY.decode(data.TO_GATEWAY.encode(message)) == message
    assert data.TO_NODE.decode(data.TO_NODE.encode(GENERATE)) == GENERATE
    asked = data.Explain(request=GENERATE)
    assert data.TO_NODE.decode(data.TO_NODE.encode(asked)) == asked
    plan = control.NodePlan(
        revision=control.Revision(1, 2),
        namespaces=[
            control.NamespacePlan(uid="u", name="a/b", model="m", purge=Purge(1, b"n"), fence=Fence(1, 0, 0)),
        ],
    )
    assert control.TO_MEMBER.decode(control.TO_MEMBER.encode(plan)) == plan


def test_unknown_fields_of_a_newer_peer_are_ignored() -> None:
    raw = msgspec.msgpack.decode(data.TO_NODE.encode(GENERATE))
    assert data.TO_NODE.decode(msgspec.msgpack.encode(raw | {"added_later": 1})) == GENERATE


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff" * 40,
        pickle.dumps({"type": "generate"}),
        msgspec.msgpack.encode({"type": "no_such_message"}),
        msgspec.msgpack.encode({"type": "cancel"}),
        msgspec.msgpack.encode({"type": "cancel", "request_id": 7}),
        msgspec.msgpack.encode(["generate"]),
        b"\x81" * 5000,
        b"\0" * (MAX_FRAME_BYTES + 1),
    ],
)
def test_iso_13_crafted_frames_are_malformed_and_nothing_else(frame: bytes) -> None:
    with pytest.raises(Malformed):
        data.TO_NODE.decode(frame)


@given(st.binary(max_size=200))
def test_iso_13_no_bytes_do_anything_but_decode_or_be_malformed(frame: bytes) -> None:
    for codec in (data.TO_NODE, data.TO_GATEWAY, control.TO_MEMBER, control.TO_PLANNER):
        try:
            codec.decode(frame)
        except Malformed:
            continue


def test_malformed_names_the_field_and_never_the_value() -> None:
    raw = msgspec.msgpack.decode(data.TO_NODE.encode(GENERATE)) | {"tokens": "secret prompt"}
    raw["spans"][0]["start"] = "secret prompt"
    with pytest.raises(Malformed) as caught:
        data.TO_NODE.decode(msgspec.msgpack.encode(raw))
    assert "secret" not in str(caught.value)


def test_versions_are_negotiated_to_the_highest_in_common() -> None:
    assert negotiate(1, PROTOCOL_VERSION + 3) == PROTOCOL_VERSION
    with pytest.raises(VersionMismatch, match="upgrade"):
        negotiate(PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 3)


def test_split_keys_refuses_half_a_key() -> None:
    assert split_keys(b"a" * 32 + b"b" * 32) == [b"a" * 32, b"b" * 32]
    with pytest.raises(Malformed):
        split_keys(b"a" * 33)


@pytest.mark.parametrize(
    ("request_fence", "expected"),
    [
        (Fence(1, 1, 1), Freshness.EQUAL),
        (Fence(1, 0, 1), Freshness.OLDER),
        (Fence(0, 9, 9), Freshness.OLDER),
        (Fence(1, 2, 1), Freshness.NEWER),
    ],
)
def test_i3_fresh_a_fence_older_in_any_counter_is_older(request_fence: Fence, expected: Freshness) -> None:
    assert request_fence.against(Fence(1, 1, 1)) is expected

"""Bodies travel by digest, are checked on arrival and split over bounded replies."""

from kvgrove_link.bodies import MAX_DIGESTS, REPLY_BYTES, accept, answer, body_digest
from kvgrove_protocol.codec import MAX_FRAME_BYTES
from kvgrove_protocol.control import TO_MEMBER, Bodies, BodyRequest


def test_unknown_digests_are_left_out() -> None:
    known = {body_digest(b"text"): b"text"}
    reply = answer(BodyRequest(digests=[body_digest(b"other"), body_digest(b"text")]), known)
    assert reply.items == [(body_digest(b"text"), b"text")]


def test_a_body_that_is_not_its_digest_is_refused() -> None:
    wanted = {body_digest(b"text")}
    assert accept(Bodies(items=[(body_digest(b"text"), b"tampered")]), wanted) == {}


def test_a_body_nobody_asked_for_is_refused() -> None:
    assert accept(Bodies(items=[(body_digest(b"text"), b"text")]), set()) == {}


def test_i11_replies_stay_within_a_frame_and_asking_again_brings_the_rest() -> None:
    bodies = [bytes([fill]) * (REPLY_BYTES - 1) for fill in range(3)]
    known = {body_digest(body): body for body in bodies}
    missing = set(known)
    rounds = 0
    while missing:
        reply = answer(BodyRequest(digests=sorted(missing)), known)
        assert len(TO_MEMBER.encode(reply)) <= MAX_FRAME_BYTES
        missing -= accept(reply, missing).keys()
        rounds += 1
    assert rounds == 3


def test_i11_a_request_is_answered_up_to_a_number_of_digests() -> None:
    known = {body_digest(bytes([i // 256, i % 256])): bytes([i // 256, i % 256]) for i in range(MAX_DIGESTS + 5)}
    assert len(answer(BodyRequest(digests=list(known)), known).items) == MAX_DIGESTS

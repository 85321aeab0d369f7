"""Every prompt token is reused or has one reason, and the counts add up (I10; COR-15, MET-02, MET-06)."""

import struct
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_daemon.accounting import Zone, account, missed_ranges, reusable_limit, zones
from kvgrove_daemon.history import ReuseHistory
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind
from kvgrove_protocol.identity import Purge, RealmInputs
from kvgrove_protocol.reasons import MissReason

B = 4
REALM = RealmInputs(generation=b"g" * 32, namespace_uid="u", purge=Purge(1, b"n"), policy_version=1)
SPANS = [
    Span(SpanKind.TEMPLATE, 0, 2),
    Span(SpanKind.PREFIX, 2, 8, name="p"),
    Span(SpanKind.DOCUMENT, 8, 16, document=DocumentRef("d", b"d" * 32, 1)),
    Span(SpanKind.PRIVATE, 16, 30),
]
TOKENS = struct.pack("<30I", *range(30))
KEYS = [bytes([block]) * 32 for block in range(7)]


def zones_of(realm: RealmInputs = REALM, spans: list[Span] = SPANS, tag: bytes = b"alice") -> list[Zone]:
    return zones(spans, TOKENS, realm, tag, B)


def counts(history: ReuseHistory, zone_list: list[Zone], reused: int = 0, gone: dict[bytes, MissReason] | None = None):  # type: ignore[no-untyped-def]
    ranges = missed_ranges(
        token_count=30,
        reused=reused,
        block_size=B,
        keys=KEYS,
        gone=(gone or {}).get,
        zone_list=zone_list,
        history=history,
    )
    edges = [(reused, reused), *((each.start, each.end) for each in ranges)]
    assert all(before[1] == after[0] for before, after in pairwise(edges)), "they tile the rest"
    assert all(before.reason is not after.reason for before, after in pairwise(ranges))
    return account(ranges)


def remembering(zone_list: list[Zone]) -> ReuseHistory:
    history = ReuseHistory()
    for zone in zone_list:
        history.record(zone.names, zone.state)
    return history


def test_met_06_a_prompt_never_seen_is_new_and_its_tail_is_a_partial_block() -> None:
    assert counts(ReuseHistory(), zones_of()) == {MissReason.NEW: 28, MissReason.PARTIAL_BLOCK: 2}


def test_met_02_a_half_warm_prompt_counts_half() -> None:
    got = counts(ReuseHistory(), zones_of(), reused=16)
    assert sum(got.values()) == 14


def test_a_changed_document_is_named_from_the_document_on() -> None:
    spans = [*SPANS[:2], Span(SpanKind.DOCUMENT, 8, 16, document=DocumentRef("d", b"e" * 32, 2)), SPANS[3]]
    got = counts(remembering(zones_of()), zones_of(spans=spans), reused=8)
    assert got == {MissReason.DOCUMENT_CHANGED: 20, MissReason.PARTIAL_BLOCK: 2}


def test_a_question_never_asked_stays_new_when_a_document_changed() -> None:
    spans = [*SPANS[:2], Span(SpanKind.DOCUMENT, 8, 16, document=DocumentRef("d", b"e" * 32, 2)), SPANS[3]]
    history = remembering(zones_of()[:2])  # only prefix and document were stored before
    got = counts(history, zones_of(spans=spans), reused=8)
    assert got == {MissReason.DOCUMENT_CHANGED: 8, MissReason.NEW: 12, MissReason.PARTIAL_BLOCK: 2}


def test_a_new_generation_and_a_purge_are_named() -> None:
    history = remembering(zones_of())
    other = msgspec.structs.replace(REALM, generation=b"h" * 32)
    assert counts(history, zones_of(other))[MissReason.GENERATION_CHANGED] == 28
    purged = msgspec.structs.replace(REALM, purge=Purge(2, b"m"))
    assert counts(history, zones_of(purged))[MissReason.PURGED] == 28


def chat(*texts: range, generation: bytes = b"g", opening: int = 0) -> list[Zone]:
    """Zones of a conversation of these messages (token ids), each behind two tokens of a template's scaffolding."""
    spans, ids = [], [0] * opening
    for text in texts:
        spans.append(Span(SpanKind.TEMPLATE, len(ids), len(ids) + 2))
        ids += [generation[0], generation[0]]
        spans.append(Span(SpanKind.PRIVATE, len(ids), len(ids) + len(text)))
        ids += text
    realm = msgspec.structs.replace(REALM, generation=generation * 32)
    return zones(spans, struct.pack(f"<{len(ids)}I", *ids), realm, b"alice", B)


def reason_of(history: ReuseHistory, zone_list: list[Zone]) -> MissReason:
    (zone,) = zone_list
    return history.why_missed(zone.names, zone.state)


def test_every_conversation_with_one_system_prompt_is_told_of_a_new_template() -> None:
    system, one, other = range(1000, 1010), range(2000, 2030), range(3000, 3030)
    history = remembering(chat(system, one) + chat(system, other))
    changed = [chat(system, text, generation=b"h", opening=7) for text in (one, other)]
    for zone_list in changed:  # the first of them is stored before the second is asked for
        assert reason_of(history, zone_list) is MissReason.GENERATION_CHANGED
        history.record(zone_list[0].names, zone_list[0].state)
    assert reason_of(history, chat(system, range(4000, 4030), generation=b"h", opening=7)) is MissReason.NEW


def test_a_conversation_is_known_again_as_it_grows_and_by_its_own_caller_alone() -> None:
    history = remembering(chat(range(1000, 1010), range(2000, 2030)))
    grown = chat(range(1000, 1010), range(2000, 2030), range(3000, 3080), generation=b"h")
    assert reason_of(history, grown) is MissReason.GENERATION_CHANGED
    assert reason_of(history, chat(range(1001, 1011), range(2000, 2030), generation=b"h")) is MissReason.NEW
    assert len(grown[0].names) == 5  # of 1, 2, 4, 8 and 16 blocks


def test_i2_isolated_another_callers_history_reads_new() -> None:
    history = remembering(zones_of(tag=b"alice"))
    purged = msgspec.structs.replace(REALM, purge=Purge(2, b"m"))
    got = counts(history, zones_of(purged, tag=b"bob"), reused=16)
    assert got == {MissReason.NEW: 12, MissReason.PARTIAL_BLOCK: 2}


def test_an_evicted_block_says_so() -> None:
    got = counts(ReuseHistory(), zones_of(), reused=8, gone={KEYS[2]: MissReason.EVICTED, KEYS[3]: MissReason.EVICTED})
    assert got == {MissReason.EVICTED: 8, MissReason.NEW: 12, MissReason.PARTIAL_BLOCK: 2}


def test_the_last_token_is_always_computed() -> None:
    assert [reusable_limit(n, 4) for n in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]


@given(st.integers(0, 29), st.lists(st.sampled_from(list(MissReason)), min_size=7, max_size=7))
def test_i10_explained_counts_add_up(cut: int, causes: list[MissReason]) -> None:
    reused = min(cut // B * B, reusable_limit(30, B))
    got = counts(ReuseHistory(), zones_of(), reused=reused, gone=dict(zip(KEYS, causes, strict=True)))
    assert reused + sum(got.values()) == 30
    assert all(count > 0 for count in got.values())


def test_i11_bounded_history_forgets_the_oldest_and_then_says_new() -> None:
    history = ReuseHistory(capacity=2)
    zone_list = zones_of()
    for zone in zone_list:
        history.record(zone.names, zone.state)
    assert len(history) == 2
    other = msgspec.structs.replace(REALM, purge=Purge(2, b"m"))
    assert history.why_missed(zone_list[0].names, zones_of(other)[0].state) is MissReason.NEW

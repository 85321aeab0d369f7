"""Identity: vectors, isolation levels, canonical encoding (I2, I9; COR-05, COR-07, COR-09, COR-12, ISO-05, ISO-10)."""

import hashlib
import os
import random
import struct
import subprocess
import sys
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_protocol import canonical, vectors
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind, block_keys, folds
from kvgrove_protocol.identity import (
    Caller,
    GenerationInputs,
    Isolation,
    LayoutFingerprint,
    Purge,
    RealmInputs,
    cache_salt,
    changed_fields,
    generation,
)

VECTORS = vectors.load()
INPUTS = GenerationInputs(
    weights="sha256:aa",
    tokenizer="sha256:bb",
    chat_template="sha256:cc",
    kv_dtype="float32",
    block_size=32,
    rope={"type": "default", "theta": 10000.0},
)
REALM = RealmInputs(generation=b"g" * 32, namespace_uid="uid-1", purge=Purge(1, b"n" * 16), policy_version=1)


def realm_of_vectors() -> RealmInputs:
    given_ = VECTORS["shared_realm"]
    return RealmInputs(
        generation=bytes.fromhex(given_["generation"]),
        namespace_uid=given_["namespace_uid"],
        purge=Purge(given_["purge_counter"], bytes.fromhex(given_["purge_nonce"])),
        policy_version=given_["policy_version"],
    )


def caller_of(fields: dict[str, object]) -> Caller:
    return msgspec.convert(fields, Caller)


def test_i9_one_key_canonical_vectors() -> None:
    for case in VECTORS["canonical"]:
        assert canonical.encode(case["value"]).hex() == case["hex"], case["value"]


def test_i9_one_key_generation_and_realm_vectors() -> None:
    inputs = msgspec.convert(VECTORS["generation"]["inputs"], GenerationInputs)
    assert generation(inputs).hex() == VECTORS["generation"]["hex"]
    realm = realm_of_vectors()
    assert realm.shared_realm().hex() == VECTORS["shared_realm"]["hex"]
    for case in VECTORS["private_realm"]:
        level, caller = Isolation(case["isolation"]), caller_of(case["caller"])
        assert realm.private_realm(level, caller, throwaway=os.urandom).hex() == case["hex"], level  # type: ignore[arg-type]
    case = VECTORS["private_realm_throwaway"]
    once = bytes.fromhex(case["throwaway"])
    got = realm.private_realm(Isolation(case["isolation"]), caller_of(case["caller"]), throwaway=lambda: once)
    assert got.hex() == case["hex"]


def test_i9_one_key_chain_vectors() -> None:
    case = VECTORS["chain"]
    tokens = struct.pack(f"<{len(case['tokens'])}I", *case["tokens"])
    spans = [
        Span(
            SpanKind[span["kind"]],
            span["start"],
            span["end"],
            document=DocumentRef(
                span["document"]["id"], bytes.fromhex(span["document"]["digest"]), span["document"]["epoch"]
            )
            if "document" in span
            else None,
        )
        for span in case["spans"]
    ]
    block_folds = folds(spans, bytes.fromhex(case["private_realm"]), case["block_size"])
    assert {str(block): fold.hex() for block, fold in block_folds.items()} == case["folds"]
    root = bytes.fromhex(case["root"])
    assert [key.hex() for key in block_keys(root, tokens, block_folds, block_size=case["block_size"])] == case["keys"]
    assert [key.hex() for key in block_keys(root, tokens, block_size=case["block_size"])] == case["keys_without_folds"]


def test_i9_one_key_salt_vector() -> None:
    case = VECTORS["cache_salt"]
    salt = cache_salt(
        bytes.fromhex(case["fleet_secret"]), bytes.fromhex(case["private_realm"]), case["document_revision"]
    )
    assert salt == case["salt"]
    assert len(salt) == 43
    assert not set(salt) & set("@/\\")


def test_cor_12_keys_equal_in_processes_with_other_hash_seeds() -> None:
    program = (
        "from kvgrove_protocol.identity import GenerationInputs, generation;"
        "rope={'b': 1, 'a': 2.5}; rope=dict(reversed(rope.items())) if __import__('os').getpid() % 2 else rope;"
        "print(generation(GenerationInputs(weights='w', tokenizer='t', chat_template='c', kv_dtype='float32',"
        "block_size=32, rope=rope)).hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(5)
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "sha256:other"),
        ("weights_quantization", "int8"),
        ("tokenizer", "sha256:other"),
        ("chat_template", "sha256:other"),
        ("adapter", "sha256:adapter"),
        ("rope", {"type": "yarn", "theta": 10000.0}),
        ("attention", {"variant": "mla"}),
        ("kv_dtype", "bfloat16"),
        ("kv_codec", "int8"),
        ("block_size", 16),
    ],
)
def test_cor_09_each_field_alone_gives_a_new_generation_and_is_named(field: str, value: object) -> None:
    changed = msgspec.structs.replace(INPUTS, **{field: value})
    assert generation(changed) != generation(INPUTS)
    assert changed_fields(INPUTS, changed) == (field,)


def test_cor_05_adapter_identity_is_content_not_name() -> None:
    one = msgspec.structs.replace(INPUTS, adapter="sha256:11")
    same_content = msgspec.structs.replace(INPUTS, adapter="sha256:11")
    other_content = msgspec.structs.replace(INPUTS, adapter="sha256:22")
    assert generation(one) == generation(same_content)
    assert generation(one) != generation(other_content)


def test_layout_fingerprint_is_not_part_of_the_generation_but_tells_layouts_apart() -> None:
    layout = LayoutFingerprint(abi="a/1", num_layers=2, num_kv_heads=1, head_dim=8, dtype="float32", block_size=32)
    other = msgspec.structs.replace(layout, abi="b/1")
    assert layout.digest() != other.digest()


def test_cor_07_no_two_of_100000_document_digests_meet() -> None:
    rng = random.Random(7)
    root, tokens = REALM.shared_realm(), struct.pack("<4I", 1, 2, 3, 4)
    seen = set()
    for _ in range(100_000):
        reference = DocumentRef("image", rng.randbytes(32), 1)
        fold = folds([Span(SpanKind.DOCUMENT, 0, 4, document=reference)], b"p" * 32, 4)
        seen.add(block_keys(root, tokens, fold, block_size=4)[0])
    assert len(seen) == 100_000


@given(st.text(max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_iso_05_no_two_splits_of_one_string_share_a_realm(text: str, first: int, second: int) -> None:
    def realm(at: int) -> bytes:
        caller = Caller(tenant=text[:at] or "-", user=text[at:] or "-")
        return REALM.private_realm(Isolation.USER, caller, throwaway=lambda: b"")

    one, two = (text[:first] or "-", text[first:] or "-"), (text[:second] or "-", text[second:] or "-")
    assert (realm(first) == realm(second)) == (one == two)


def test_iso_05_canonical_encoding_is_injective_over_shapes() -> None:
    values: list[canonical.Canonical] = [
        ["org_1", "2345"], ["org_12345", ""], ["org_12345"], "org_12345", b"org_12345", 1, 1.0, True, "1", [], {}, None,
        [[], []], [[[]]], {"a": "b"}, ["a", "b"], {"a": {"b": None}}, {"a": None, "b": None},
    ]  # fmt: skip
    assert len({canonical.encode(value) for value in values}) == len(values)


def test_canonical_refuses_what_has_no_form() -> None:
    with pytest.raises(ValueError, match="NaN"):
        canonical.encode(float("nan"))
    with pytest.raises(TypeError, match="set"):
        canonical.encode({1, 2})  # type: ignore[arg-type]


ALICE = Caller(tenant="acme", user="alice", scopes=("hr",), session="s1")
OTHERS = {
    "tenant": Caller(tenant="other", user="alice", scopes=("hr",), session="s1"),
    "user": Caller(tenant="acme", user="bob", scopes=("hr",), session="s1"),
    "scopes": Caller(tenant="acme", user="alice", scopes=("hr", "legal"), session="s1"),
    "session": Caller(tenant="acme", user="alice", scopes=("hr",), session="s2"),
}
SEPARATES = {
    Isolation.PUBLIC: set(),
    Isolation.TENANT: {"tenant"},
    Isolation.SCOPE: {"tenant", "scopes"},
    Isolation.USER: {"tenant", "user"},
    Isolation.SESSION: {"tenant", "user", "session"},
}


@pytest.mark.parametrize("level", list(Isolation))
def test_i2_isolated_each_level_mixes_its_fields_and_no_others(level: Isolation) -> None:
    def realm(caller: Caller) -> bytes:
        return REALM.private_realm(level, caller, throwaway=lambda: os.urandom(32))

    for field, other in OTHERS.items():
        assert (realm(ALICE) != realm(other)) == (field in SEPARATES[level]), field
    assert realm(ALICE) != REALM.shared_realm()


def test_i2_isolated_scope_order_and_repetition_do_not_matter() -> None:
    one = Caller(tenant="acme", scopes=("b", "a"))
    two = Caller(tenant="acme", scopes=("a", "b", "a"))
    assert REALM.private_realm(Isolation.SCOPE, one, throwaway=os.urandom) == REALM.private_realm(  # type: ignore[arg-type]
        Isolation.SCOPE,
        two,
        throwaway=os.urandom,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("level", "caller"),
    [
        (Isolation.TENANT, Caller()),
        (Isolation.TENANT, Caller(tenant="")),
        (Isolation.SCOPE, Caller(scopes=("a",))),
        (Isolation.USER, Caller(tenant="acme")),
        (Isolation.SESSION, Caller(tenant="acme", user="alice")),
    ],
)
def test_iso_10_a_missing_field_gets_a_throwaway_realm(level: Isolation, caller: Caller) -> None:
    first = REALM.private_realm(level, caller, throwaway=lambda: os.urandom(32))
    second = REALM.private_realm(level, caller, throwaway=lambda: os.urandom(32))
    assert first != second


def test_shared_realm_moves_with_each_of_its_inputs() -> None:
    others = [
        msgspec.structs.replace(REALM, generation=b"h" * 32),
        msgspec.structs.replace(REALM, namespace_uid="uid-2"),
        msgspec.structs.replace(REALM, purge=Purge(2, b"n" * 16)),
        msgspec.structs.replace(REALM, purge=Purge(1, b"m" * 16)),
        msgspec.structs.replace(REALM, policy_version=2),
    ]
    realms = [REALM.shared_realm(), *(other.shared_realm() for other in others)]
    assert len(set(realms)) == len(realms)


def test_i3_fresh_a_document_that_comes_back_never_meets_its_old_blocks() -> None:
    tokens = struct.pack("<8I", *range(8))
    digest = hashlib.sha256(b"text").digest()
    keys = []
    for epoch in (1, 2, 3):  # v1 -> v2 -> v1: the text is the same in 1 and 3
        span = Span(SpanKind.DOCUMENT, 0, 8, document=DocumentRef("d", digest, epoch))
        keys.append(block_keys(REALM.shared_realm(), tokens, folds([span], b"p" * 32, 4), block_size=4))
    for old, new in pairwise(keys):
        assert not set(old) & set(new)
    pasted = block_keys(REALM.shared_realm(), tokens, folds([Span(SpanKind.PRIVATE, 0, 8)], b"p" * 32, 4), block_size=4)
    assert not set(pasted) & {key for chain in keys for key in chain}

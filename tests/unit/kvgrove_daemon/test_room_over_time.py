"""What must not add up over hours: pins, private slots, index entries (MEM-01, MEM-03, MEM-09)."""

import random

from block_store_rig import Clock, begin, caller, chain_of, make_store, reuse, run_of, serve, tokens

from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.store import StoreLimits


def test_mem_01_look_ups_that_load_nothing_leave_no_pins_and_cost_no_hits() -> None:
    rng = random.Random(1)
    store = make_store(60)
    chains = [chain_of(store, run_of(100 * n, 21)) for n in range(10)]
    for chain in chains:
        serve(store, chain)
    held = []
    for _ in range(10_000):
        with store.match(rng.choice(chains)) as match:
            if rng.random() < 0.1:
                held.append(match.take_lease())  # its client dies: whoever watches it ends its scope
        if len(held) > 20:
            held.pop(rng.randrange(len(held))).release()
    for lease in held:
        lease.release()
    assert (store.stats().leases, store.stats().free) == (0, 10)
    assert [reuse(store, chain) for chain in chains] == [20] * 10
    check(store)


def test_mem_03_progress_needs_no_new_traffic_where_nearly_all_is_pinned() -> None:
    store = make_store(20)
    builds = [begin(store, chain_of(store, run_of(100 * n, 16))) for n in range(5)]
    waiting = store.match(chain_of(store, run_of(900, 16)))
    assert hasattr(store.begin(waiting), "wanted")
    builds[0].commit(4, lambda: True)
    builds[0].finish()
    build = store.begin(waiting)
    assert not hasattr(build, "wanted")
    check(store)


def test_mem_09_random_stores_drops_and_expiry_bring_the_index_back_to_its_base_size() -> None:
    rng = random.Random(9)
    clock = Clock()
    store = make_store(
        120, clock=clock, limits=StoreLimits(known_chain_bytes=20_000, low_free=10, high_free=20, ghosts=64)
    )
    for step in range(3000):
        clock.now += 1
        namespace = rng.choice("abc")
        raw = tokens(rng.randrange(2) for _ in range(4 * rng.randrange(1, 9)))
        writer = Writer(caller(rng.randrange(1, 4), rng.randrange(1, 4)), private_from=rng.randrange(1))
        chain = chain_of(store, raw, namespace=namespace, root=namespace.encode() * 32, writer=writer)
        serve(store, chain)
        match rng.randrange(40):
            case 0:
                store.drop(cause=RemovalCause.ERASE, namespace=namespace, contributor=writer.contributor)
            case 1:
                store.drop(cause=RemovalCause.VERSION, namespace=namespace)
            case 2:
                ttl = rng.choice([None, 20.0])
                room = NamespaceRoom(ttl_s=ttl, max_branches=2, policy=rng.choice([None, *POLICIES]), tenant_share=50)
                store.set_room(namespace, room)
            case _:
                store.relieve(limit=8)
        if step % 300 == 0:
            check(store)
    store.clear()
    resident = store.resident
    index = resident.index
    tables = (
        index.roots,
        index.folds,
        index.tags,
        index.owners,
        resident.branches,
        index.per_group,
        index.per_namespace,
    )
    assert [len(table) for table in tables] == [0] * len(tables)
    assert (index.held, len(index), store.free_slots, len(index._paths._paths)) == (0, 0, 120, 0)
    check(store)

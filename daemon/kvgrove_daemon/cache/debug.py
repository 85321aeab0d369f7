"""A proof, for tests and incident dumps, that a store is whole at this moment.

Role: recount everything from the columns and compare. O(pool) and slow on purpose: it trusts no counter that it checks.
Must not know: anything that only a caller of the store knows. Says which fact broke, never tokens or whole keys (I12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.branches import Branches
from kvgrove_daemon.cache.contributors import joined
from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.cache.interned import Interned
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.resident import ResidentBlocks
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.errors import Terminal


class BrokenInvariant(Terminal):
    """A store contradicts itself: a defect."""

    code = "broken_invariant"


def check(store: BlockStore, *, rehash: bool = True) -> None:
    """Raise `BrokenInvariant` unless ``store`` is rooted, whole and adds up.

    ``rehash``: recompute every key from root, folds and tokens; pass False where keys come from another function.
    """
    resident = store.resident
    check_resident(resident, rehash=rehash)
    private = [slot for build in store._scope.live for slot in build.private_slots()]
    quarantined = [slot for slot in range(resident.pool.num_slots) if slot in resident.quarantine]
    free = check_slots(resident, [*private, *quarantined])
    _demand(not free, f"slots that nobody holds: {free[:8]}")
    stats = store.stats()
    total = stats.free + stats.ready + stats.retiring + stats.private + stats.quarantined
    _demand(total == stats.slots, f"{total} slots are accounted for, of {stats.slots}")


def check_resident(resident: ResidentBlocks, *, rehash: bool = True) -> None:
    """The same for the blocks of one tier: all but its slots."""
    index = resident.index
    blocks = {block: state for block, state, _ in index.entries()}
    _check_tree(index, blocks)
    if rehash:
        _check_keys(index)
    _check_counts(index, blocks)
    _check_tags(index, blocks)
    _check_branches(resident.branches, index, blocks)
    _check_leases(resident, blocks)


def check_slots(resident: ResidentBlocks, others: Iterable[int]) -> list[int]:
    """That no slot has two holders; answers those without any. ``others``: held by neither a block nor the pool."""
    index = resident.index
    holders = Counter(index.slot[block] for block, _, _ in index.entries())
    holders.update(others)
    for run in resident.pool.free_runs():
        holders.update(run.slots())
    slots = range(resident.pool.num_slots)
    twice = [slot for slot in holders if holders[slot] > 1 or slot not in slots]
    _demand(not twice, f"slots with more than one holder: {twice[:8]}")
    return [slot for slot in slots if not holders[slot]]


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenInvariant(what)


def _check_tree(index: BlockIndex, blocks: dict[int, BlockState]) -> None:
    children = Counter(index.parent[block] for block in blocks)
    for block, state in blocks.items():
        parent = index.parent[block]
        _demand(state in (BlockState.READY, BlockState.EVICTING), f"block {block} is {state.name} in the index")
        _demand(parent == NO_BLOCK or parent in blocks, f"block {block} outlives its parent {parent}")
        if state is BlockState.READY:
            _demand(index.find(index.key(block)) == block, f"READY block {block} is not found by its key")
            _demand(
                parent == NO_BLOCK or blocks[parent] is BlockState.READY, f"block {block} is READY, its parent is not"
            )
        else:
            _demand(index.find(index.key(block)) != block, f"retired block {block} is still found")
        depth = 0 if parent == NO_BLOCK else index.depth[parent] + 1
        _demand(index.depth[block] == depth, f"block {block} has depth {index.depth[block]}, not {depth}")
        _demand(parent == NO_BLOCK or index.root[parent] == index.root[block], f"block {block} left its parent's root")
        _demand(index.children[block] == children[block], f"block {block} has {children[block]} children")
        walked, at = [block], parent
        while at != NO_BLOCK:
            walked.append(at)
            at = index.parent[at]
        _demand(index.chain_ids(block).tolist() == walked[::-1], f"stretches of block {block} are not its ancestors")
    ready = sum(state is BlockState.READY for state in blocks.values())
    _demand(len(index) == ready, f"{len(index)} keys are listed for {ready} READY blocks")
    _demand(index.held == len(blocks), f"{index.held} ids are in use for {len(blocks)} blocks")


def _check_branches(branches: Branches, index: BlockIndex, blocks: dict[int, BlockState]) -> None:
    children: dict[int, set[int]] = {}
    for block in blocks:
        children.setdefault(index.parent[block], set()).add(block)
    branching = {parent: found for parent, found in children.items() if parent != NO_BLOCK and len(found) > 1}
    known = {parent: {child for owned in owners.values() for child in owned} for parent, owners in branches.by_owner()}
    _demand(known == branching, "the children of branching blocks are not those that are noted")
    for _, owners in branches.by_owner():
        for owner_id, owned in owners.items():
            _demand(all(index.owner[child] == owner_id for child in owned), "a branch is charged to somebody else")


def _check_keys(index: BlockIndex) -> None:
    tokens_of = {block: tokens for block, _, tokens in index.entries()}
    for block in index.ready_ids().tolist():
        parent, depth = index.parent[block], index.depth[block]
        before = index.roots.value(index.root[block]) if parent == NO_BLOCK else index.key(parent)
        folds = {depth: index.folds.value(index.fold[block])} if index.fold[block] else {}
        raw = tokens_of[block].astype("<u4").tobytes()
        expected = block_keys(before, raw, folds, block_size=index.block_size, first_block=depth)
        _demand(expected == [index.key(block)], f"the key of block {block} is not that of its content")


def _check_counts(index: BlockIndex, blocks: dict[int, BlockState]) -> None:
    namespaces = Counter(index.namespace(block) for block in blocks)
    _demand(index.per_namespace == dict(namespaces), "blocks per namespace do not add up")
    groups = Counter(index.group(block) for block in blocks)
    _demand(index.per_group == dict(groups), "blocks per group do not add up")
    _check_uses("root", index.roots, index.root, blocks)
    _check_uses("fold", index.folds, index.fold, blocks)
    _check_uses("tag", index.tags, index.tag, blocks)
    _check_uses("owner", index.owners, index.owner, blocks)


def _check_uses(what: str, table: Interned[Any], column: Sequence[int], blocks: Iterable[int]) -> None:
    uses = Counter(column[block] for block in blocks if column[block])
    _demand({known: table.uses(known) for known, _, _ in table.items()} == dict(uses), f"uses of a {what} are off")


def _check_tags(index: BlockIndex, blocks: dict[int, BlockState]) -> None:
    for block in blocks:
        parent = index.parent[block]
        if parent != NO_BLOCK and index.tag[parent]:
            above, below = index.tag_of(parent), index.tag_of(block)
            _demand(joined(above, below) == above, f"block {block} was contributed to by more than its parent")


def _check_leases(resident: ResidentBlocks, blocks: dict[int, BlockState]) -> None:
    index, leases = resident.index, resident.leases
    protected: set[int] = set()
    for tail in leases:
        _demand(leases.count(tail) > 0, f"block {tail} has {leases.count(tail)} readers")
        _demand(tail in blocks, f"block {tail} is leased and gone")
        protected.update(index.chain_ids(tail).tolist())
    _demand(sum(leases.count(tail) for tail in leases) <= leases.active, "more readers than leases")
    evictable = {block for block, state in blocks.items() if state is BlockState.READY and block not in protected}
    _demand(
        resident.evictable == len(evictable), f"{resident.evictable} blocks count as evictable, {len(evictable)} are"
    )
    for block in blocks.keys() - evictable:
        _demand(block in protected, f"block {block} is retired, unread, and still holds its slot")
    for block in evictable:
        if not index.children[block]:
            offered = resident.policy.knows(block, index.group(block))
            _demand(offered, f"leaf {block} could go, and the policy has never heard of it")

"""Between index rows and the facts that a medium keeps beside a block's bytes.

Role: both directions, in one place. Invariant: facts of a READY block, made into a batch again, give the same block in
another index: same key, parent, tokens, fold, documents. Must not know: media, slots' meaning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvgrove_daemon.cache.contributors import listed, tag_from
from kvgrove_daemon.cache.incoming import NewBlocks
from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.cache.interned import NOTHING
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.tiers.medium import Facts


def facts_of(index: BlockIndex, block: int) -> Facts:
    """What makes ``block`` findable. It must be held, READY or retired."""
    root, parent, fold = index.roots.value(index.root[block]), index.parent[block], index.fold[block]
    return Facts(
        namespace=index.namespace(block),
        root=root,
        key=index.key(block),
        parent=root if parent == NO_BLOCK else index.key(parent),
        depth=index.depth[block],
        tokens=index.tokens(block),
        fold=index.folds.value(fold) if fold != NOTHING else b"",
        documents=index.folds.labels(fold) if fold != NOTHING else (),
        contributors=listed(index.tag_of(block)),
    )


def batch_of(facts: Sequence[Facts], slots: Sequence[int], computed_at: float) -> NewBlocks:
    """Blocks of one chain, each the child of the one before, as they are admitted. ``facts`` is not empty."""
    return NewBlocks(
        facts[0].namespace,
        facts[0].root,
        [each.key for each in facts],
        np.frombuffer(b"".join(each.tokens for each in facts), "<u4"),
        slots,
        {at: (each.fold, each.documents) for at, each in enumerate(facts) if each.fold},
        {at: tag_from(each.contributors) for at, each in enumerate(facts)},
        computed_at,
    )

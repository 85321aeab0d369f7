"""The disk tier's medium: one sealed file per block, in a directory that one daemon owns.

In the life of a node (worker thread: these calls block on files)::

    disk = DiskMedium.open(directory, layout=fingerprint.digest(), block_size=32, block_bytes=layout.block_bytes,
                           capacity_bytes=plan.pool_bytes["disk"])            # DirectoryBusy: another daemon has it
    disk.set_secret(uid, plan.secret, plan.former_secret)                     # with each fresh lease
    survivors = disk.survey(uid, roots)      # worker thread. Whole, of this layout and these roots; parents first
    for survivor in survivors:               # the cache's own thread: no file is touched
        slot = ...                           # one of the tier's free slots, or stop
        disk.adopt(slot, survivor)           # False: it had to give way to a write meanwhile; skip its descendants
    disk.discard(uid)                        # worker thread: unlinks whatever of it was not adopted

    disk.write(slot, facts, body)            # MediumFull, MediumFailed, SecretUnknown
    disk.write_many([(slot, facts, body), ...])   # all or none, one fsync of the directory
    disk.read(slot, facts)                   # MediumCorrupt, MediumFailed: the slot is empty. SecretUnknown: it is not
    disk.release(slots)                      # evicted: unlinked, not overwritten
    disk.erase(slots)                        # overwritten, read back, gone; EraseIncomplete says which are not
    disk.rewrap(uid, old, new)               # after an erasure of part of it; RewrapIncomplete: call again
    disk.erase_namespace(uid)                # all of it, adopted or not, without any secret
    disk.forget_secret(uid)                  # lease end: its extents are noise until it is given again
    disk.namespaces()                        # UIDs of which any byte is left (for Hello)
    disk.state()                             # gauges, counters by cause, and why it does not take writes now
    disk.close()

What was on disk before the start belongs to nobody until it is adopted: it counts against ``num_slots``, and gives way,
deepest first, to whatever is written. A slot is this module's name for a block only as long as the process lives.

A directory holds one layout. Give each pool its own below a common one, named after its layout, and open those of
layouts that are served no more with ``capacity_bytes=0``: that empties them.
"""

from kvgrove_daemon.cache.tiers.disk.adoption import Survivor
from kvgrove_daemon.cache.tiers.disk.causes import (
    Cause,
    DirectoryBusy,
    DirectoryUnusable,
    EraseIncomplete,
    RewrapIncomplete,
    SecretUnknown,
)
from kvgrove_daemon.cache.tiers.disk.filesystem import Filesystem
from kvgrove_daemon.cache.tiers.disk.medium import DiskMedium, DiskState
from kvgrove_daemon.cache.tiers.disk.reading import Rewrapped

__all__ = [
    "Cause",
    "DirectoryBusy",
    "DirectoryUnusable",
    "DiskMedium",
    "DiskState",
    "EraseIncomplete",
    "Filesystem",
    "RewrapIncomplete",
    "Rewrapped",
    "SecretUnknown",
    "Survivor",
]

"""Put the extents that survive an erasure under a new secret, so that the old one can be destroyed.

Role: one extent at a time, in place. A file has two key pages, of which one is empty: the new wrap is written into it,
made durable and read back before the old one is overwritten. So at every moment at least one whole page opens the
extent, whatever a crash tears; the block's body, hundreds of times as large, is not written again, and what was not
reached yet is found by its page when the call is made again. (A new file per extent would be as safe, but it writes all
survivors' bytes once more and needs room that a full disk does not have.)
Must not know: slots, why.
"""

from __future__ import annotations

from kvgrove_daemon.cache.tiers.disk import sealing
from kvgrove_daemon.cache.tiers.disk.adoption import open_key
from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, Cause
from kvgrove_daemon.cache.tiers.disk.extent import ERASED, FACTS_AT, KEY_PAGES, PAGE, Header, parse
from kvgrove_daemon.cache.tiers.disk.files import ExtentFiles
from kvgrove_daemon.cache.tiers.disk.filesystem import Filesystem
from kvgrove_daemon.cache.tiers.disk.sealing import Entropy, Secret


def rewrap(files: ExtentFiles, header: Header, old: Secret, new: Secret, entropy: Entropy) -> bool:
    """Leave the extent under ``new`` alone. False: it was already. Raises BadExtent or OSError."""
    system = files.filesystem
    descriptor = system.open(files.path(header.extent))
    try:
        head = system.read_at(descriptor, 0, FACTS_AT)
        if len(head) < FACTS_AT:
            raise BadExtent(Cause.TRUNCATED)
        if parse(head[:PAGE]) != header:
            raise BadExtent(Cause.CORRUPT)
        pages = [head[at : at + PAGE] for at in KEY_PAGES]
        names = [sealing.wrapped_by(page) for page in pages]
        if new.name in names:
            keep = names.index(new.name)
        else:
            data_key = open_key(pages, head[:PAGE], (old,))
            keep = 1 - names.index(old.name)
            page = sealing.wrap(data_key, new, head[:PAGE], entropy, PAGE)
            _write_page(system, descriptor, KEY_PAGES[keep], page)
        if pages[1 - keep] == ERASED:
            return False
        _write_page(system, descriptor, KEY_PAGES[1 - keep], ERASED)
    finally:
        system.close(descriptor)
    return True


def _write_page(system: Filesystem, descriptor: int, at: int, page: bytes) -> None:
    system.write_at(descriptor, at, [page])
    system.sync(descriptor)
    system.drop_cached(descriptor)
    if system.read_at(descriptor, at, PAGE) != page:
        raise BadExtent(Cause.CORRUPT)

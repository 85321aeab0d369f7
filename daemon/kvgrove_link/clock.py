"""The clock that leases are measured on.

CLOCK_BOOTTIME goes on while a machine is suspended and is never set: a lease ends also where its holder slept through
its end. Readings of two machines have nothing to do with each other; only differences on one machine mean anything.
"""

import time


def boottime() -> float:
    """Seconds since this machine was started, time asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)

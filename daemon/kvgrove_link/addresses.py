"""Which ZeroMQ addresses others can reach. Pure."""

import ipaddress
import re


def stays_here(address: str) -> bool:
    """Whether only processes of this machine can reach ``address`` (a ZeroMQ endpoint)."""
    if address.startswith("ipc://"):
        return True
    found = re.fullmatch(r"tcp://(?:\[([^\]]+)\]|([^:/\s]+)):(\d+|\*)", address)
    if found is None:
        return False
    try:
        return ipaddress.ip_address(found[1] or found[2]).is_loopback
    except ValueError:
        return False  # a name may resolve to anything, tomorrow to something else

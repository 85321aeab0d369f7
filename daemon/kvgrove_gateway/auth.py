"""Names that moved to `kvgrove_gateway.identity`."""

from kvgrove_gateway.identity.caller import Identity, holds_all_of
from kvgrove_gateway.identity.key_file import KeyEntry, KeyList, parse_keys
from kvgrove_gateway.identity.key_ring import KeyRing

__all__ = ["Identity", "KeyEntry", "KeyList", "KeyRing", "holds_all_of", "parse_keys"]

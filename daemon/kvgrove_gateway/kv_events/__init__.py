"""Residency of engines that are not ours, learned from the KV events they publish (docs/kv-events.md)."""

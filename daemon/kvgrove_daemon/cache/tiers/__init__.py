"""Slower places for blocks that the engine's pool has no room for: host memory and disk."""

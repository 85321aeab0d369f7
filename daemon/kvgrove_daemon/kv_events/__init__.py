"""Residency events for others: opt-in, in the schema that vLLM publishes today (docs/kv-events.md)."""

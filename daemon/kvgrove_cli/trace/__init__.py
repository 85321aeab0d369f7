"""Public request traces: reading them, and replaying them through the node's own index and eviction policies."""

"""The node daemon: KV pools, engines and caches of one node (DESIGN section 5, points 4 to 7)."""

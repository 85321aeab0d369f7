"""Dialects: what callers send and receive. Nothing here knows nodes, routing or plans."""

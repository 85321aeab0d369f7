"""The HTTP front: OpenAI's chat API in, the node that finishes first out.

A gateway is a member like any daemon: it dials the planner, applies plans and works under freshness leases. It holds no
weights and no KV; a crash loses nothing but the requests under way.
"""

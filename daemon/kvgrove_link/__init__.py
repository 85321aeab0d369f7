"""The control link: members dial a planner, whole plans come down, reports go up, leases are granted.

Sockets, time and leases over `kvgrove_protocol`. What a plan means is not known here.
"""

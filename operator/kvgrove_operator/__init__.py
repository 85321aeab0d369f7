"""Planning: two kinds of resources in, a plan for every member of the fleet out, and who has acknowledged it.

The same code serves the operator and `kvgrove up`. What decides is pure; effects are for those who call it.
"""

"""How a namespace moves from one generation to another, both side by side meanwhile. Pure.

`table` says what may follow what, `facts` what must be durable, `gate` and `analysis` what measured values mean,
`due` which event is due, `machine` what follows, and `side_by_side` what members are told. Nobody here knows an object,
a socket or a clock.
"""

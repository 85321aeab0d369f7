"""Why a prompt is reused or not, and where two prompts part: for callers of their own realm, for operators of any.

`parting` and `changes` compare, `pieces` lays fates over the prompt's text, `report` is what is answered: all pure, and
used by the command line on two files too. `service` asks the fleet, `routes` is its HTTP side.
"""

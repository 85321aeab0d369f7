"""Finds what keeps prompts from being reused: volatile text, and shifting order, in what ought to be stable.

`patterns` knows what dates, clocks, ids and counters look like; `stable_zone` what of a request is to stay the same;
`lint` judges one text, `sketch` learns from many which position varies. Findings carry positions, never text (I12).
"""

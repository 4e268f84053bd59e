"""Attacks: what one user's programs can do to hurt the other users of a bus, and what it costs
these. `python -m sbus.bench attacks` measures all of them; tests/hostile counts what they did."""

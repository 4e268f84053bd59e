"""Measurements of the broker: load generators in C, and what runs them and reads the figures.

Run as `python -m sbus.bench NAME`; docs/benchmarks.md says what each figure means. Nothing else in
the project imports this.
"""

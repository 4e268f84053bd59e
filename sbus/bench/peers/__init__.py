"""The same works through sbus and through other brokers of one host, side by side.

`brokers` starts each of them, `comparison` measures and makes tables, `documents` puts these into
docs/benchmarks.md. One load generator, `load.c`, speaks all protocols (`wires.c`).
"""

"""A recording on disk: its tables, its files, and how they are written, read and rewritten.

It needs pyarrow and numpy, and neither a bus nor Spark. docs/recording.md describes the format.
"""

"""The data pipeline: what crosses a bus is recorded, and Spark answers questions about it.

Nothing else of sbus imports it. The recording side needs pyarrow (extra `recorder`) and no Java.
"""

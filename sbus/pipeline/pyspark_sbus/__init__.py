"""The doorway through which Spark finds `format("sbus")`.

Spark imports every top-level package whose name begins with `pyspark_`, in each process that wants
one, and takes its `DefaultSource`. So the wheel puts this file, and nothing else, at top level.
"""

from sbus.pipeline.spark.source import DefaultSource

__all__ = ["DefaultSource"]

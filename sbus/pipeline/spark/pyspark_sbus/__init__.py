"""How Spark finds `format("sbus")`, and what programs for Spark import.

Spark imports every top-level package whose name begins with `pyspark_`, and uses its
`DefaultSource`. So the wheel installs this package, and nothing else, at top level.
"""

from sbus.pipeline.spark.lag import LagListener
from sbus.pipeline.spark.source import DefaultSource

__all__ = ["DefaultSource", "LagListener"]

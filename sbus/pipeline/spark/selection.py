"""Which part of which recording a job reads, and its tables as Spark reads them."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sbus.pipeline.store.reader import Recording

Table = Literal["messages", "clients", "events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows from `since` until before `until`, in UTC, of these hosts; None and () mean all."""

    directory: Path
    since: datetime | None = None
    until: datetime | None = None
    hosts: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises ConfigurationError if there is no recording; starting Spark takes seconds."""
        Recording(self.directory).check()

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        source = spark.read.format("sbus").options(path=str(self.directory), table=table)
        found = source.load()
        if self.since is not None:
            found = found.where(F.col("timestamp") >= F.lit(self.since))
        if self.until is not None:
            found = found.where(F.col("timestamp") < F.lit(self.until))
        return found.where(F.col("host").isin(*self.hosts)) if self.hosts else found

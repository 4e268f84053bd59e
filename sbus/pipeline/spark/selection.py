"""Which part of which recording a job reads, and its tables as Spark reads them."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sbus.errors import ConfigurationError
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

    def earlier(self, directory: Path) -> "Selection":
        """The same hosts of an earlier recording of the same buses, at all times.

        Raises ConfigurationError if it has other recorders: their names are made of machine and
        bus.
        """
        selection = Selection(directory=directory, hosts=self.hosts)
        ours, theirs = (set(Recording(each.directory).recorders()) for each in (self, selection))
        if ours != theirs:
            raise ConfigurationError(
                f"{directory} is no recording of the same bus: its recorder is "
                f"{', '.join(sorted(theirs)) or 'none'}, not {', '.join(sorted(ours)) or 'none'}"
            )
        return selection

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        source = spark.read.format("sbus").options(path=str(self.directory), table=table)
        found = source.load()
        if self.since is not None:
            found = found.where(F.col("timestamp") >= F.lit(self.since))
        if self.until is not None:
            found = found.where(F.col("timestamp") < F.lit(self.until))
        return found.where(F.col("host").isin(*self.hosts)) if self.hosts else found

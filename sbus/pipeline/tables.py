"""A recording's tables, as Spark reads them: all of it, or what somebody asked for.

Goes by the source `sbus` and knows no file. Whether there is a recording is asked before Spark is
started, which takes some seconds.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sbus.errors import ConfigurationError

Table = Literal["messages", "clients", "events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which part of which recording. Times are UTC; `since` is in it, `until` is not."""

    directory: Path
    since: datetime | None = None
    until: datetime | None = None
    hosts: tuple[str, ...] = ()


def check_recording(directory: Path) -> None:
    """Raises ConfigurationError where no recorder has written."""
    if not directory.is_dir():
        raise ConfigurationError(f"there is no directory {directory}")
    if not any(directory.glob("*/manifest.json")):
        raise ConfigurationError(
            f"{directory} holds no recording: no */manifest.json; `sbusctl record` makes one"
        )


def read_table(spark: SparkSession, asked: Asked, table: Table) -> DataFrame:
    found = spark.read.format("sbus").options(path=str(asked.directory), table=table).load()
    if asked.since is not None:
        found = found.where(F.col("timestamp") >= F.lit(asked.since))
    if asked.until is not None:
        found = found.where(F.col("timestamp") < F.lit(asked.until))
    if asked.hosts:
        found = found.where(F.col("host").isin(*asked.hosts))
    return found

"""Recordings of several hosts as one table: by scan and by source."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sbus.pipeline.spark.selection import read
from tests.support.small_recording import SmallRecorder, numbered

ROWS = [*(("web1", n) for n in range(12)), *(("web2", n) for n in range(7))]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings of hosts that call themselves the same; the last two rows are not sealed."""
    directory = tmp_path_factory.mktemp("recordings")
    for folder, bus_rows in (("web1", 12), ("web2", 7)):
        with SmallRecorder(directory / f"host={folder}", f"{folder}-local") as recorder:
            recorder.record(numbered(bus_rows - 2))
            recorder.roll()
            recorder.seal()
            recorder.record(numbered(2, bus_rows - 2))
    return directory


def test_it_is_one_table_with_the_host(spark: SparkSession, recorded: Path) -> None:
    found = read(spark, str(recorded))
    by_source = spark.read.format("sbus").load(str(recorded))
    assert sorted(found.collect()) == sorted(by_source.collect())
    assert sorted(map(tuple, found.select("host", "offset").collect())) == ROWS


def test_a_choice_of_hosts_leaves_out_whole_recordings(spark: SparkSession, recorded: Path) -> None:
    chosen = read(spark, str(recorded), hosts=["web2"])
    assert sorted(map(tuple, chosen.select("host", "offset").collect())) == ROWS[12:]
    assert all("/host=web2/messages/" in file for file in chosen.inputFiles())
    # What a filter leaves of the plan. Spark's own scans have a root each, the source has none.
    filtered = read(spark, str(recorded)).where("host = 'web2'")
    optimized = filtered._jdf.queryExecution().optimizedPlan().toString()
    assert optimized.count("parquet") == 1
    assert sorted(map(tuple, filtered.select("host", "offset").collect())) == ROWS[12:]
    by_source = spark.read.format("sbus").option("hosts", "web2, web9").load(str(recorded))
    assert sorted(map(tuple, by_source.select("host", "offset").collect())) == ROWS[12:]
    assert by_source.rdd.getNumPartitions() == 1

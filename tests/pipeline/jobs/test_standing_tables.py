"""The declarative pipeline's definitions, run twice: every row is there once.

A stand-in for `spark-pipelines` runs them in the order in which they are defined.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import (
    GraphElementRegistry,
    graph_element_registration_context,
)
from pyspark.pipelines.output import MaterializedView, Output, StreamingTable
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.jobs import oracles
from tests.support.bus import PROJECT
from tests.support.job_results import LOSS_COLUMNS, answer, keyed
from tests.support.recordings import Tables, generate, write

FOLDER = PROJECT / "deploy/spark"


class Definitions(GraphElementRegistry):
    """The definitions of the files, in order."""

    def __init__(self) -> None:
        self.outputs: dict[str, Output] = {}
        self.flows: dict[str, Callable[[], DataFrame]] = {}

    def register_output(self, output: Output) -> None:
        self.outputs[output.name] = output

    def register_flow(self, flow: Flow) -> None:
        self.flows[flow.target] = flow.func

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise AssertionError(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError(file_path)


@pytest.fixture(scope="module")
def definitions() -> Definitions:
    specification = (FOLDER / "spark-pipeline.yml").read_text()
    (files,) = re.findall(r"^ +include: (\S+)$", specification, re.MULTILINE)
    found = Definitions()
    with graph_element_registration_context(found):
        for path in sorted(FOLDER.glob(f"{files}/*.py")):
            spec = importlib.util.spec_from_file_location(f"transformation_{path.stem}", path)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return found


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """Tables below a directory of this test, and gone with it."""
    spark.sql(f"CREATE DATABASE standing LOCATION '{tmp_path}/warehouse'")
    spark.sql("USE standing")
    yield tmp_path
    spark.sql("USE default")
    spark.sql("DROP DATABASE standing CASCADE")


def run(definitions: Definitions, folder: Path, *names: str) -> None:
    for name in names:
        output = definitions.outputs[name]
        rows = definitions.flows[name]()
        if isinstance(output, StreamingTable):
            rows.writeStream.trigger(availableNow=True).option(
                "checkpointLocation", str(folder / "state" / name)
            ).partitionBy(*output.partition_cols or []).toTable(name).awaitTermination()
        else:
            assert isinstance(output, MaterializedView)
            rows.write.mode("overwrite").saveAsTable(name)


CHECKED = ("traffic_by_minute", "losses_by_hour")
HALF = 1_000
"""An offset in the middle of each recorder's messages."""


def test_a_second_run_adds_the_rows_recorded_since(
    spark: SparkSession, definitions: Definitions, catalog: Path
) -> None:
    tables = generate(3_000, seed=3, seconds=600)
    before = pc.less(tables.messages["offset"], HALF)
    parts = [tables.messages.filter(mask) for mask in (before, pc.invert(before))]
    rows = [oracles.rows(part) for part in parts]
    recording = catalog / "recording"
    spark.conf.set("spark.sbus.recording", str(recording))

    write(recording, replace(tables, messages=parts[0]))
    run(definitions, catalog, "messages", "clients", "events", *CHECKED)
    check(spark, rows[0])
    for name in definitions.outputs:
        assert definitions.flows[name]().columns, "all of them can be planned"
    nothing_more = tables.clients.slice(0, 0), tables.events.slice(0, 0)
    write(recording, Tables(parts[1], *nothing_more))
    run(definitions, catalog, "messages", "clients", *CHECKED)
    check(spark, rows[0] + rows[1])
    found = answer(spark.read.table("clients"), "recorder", "offset")
    assert len(found) == len(set(found)) == tables.clients.num_rows


def check(spark: SparkSession, rows: list[oracles.Message]) -> None:
    found = answer(spark.read.table("messages"), "recorder", "offset")
    assert Counter(found) == Counter((row.recorder, row.offset) for row in rows)
    found = answer(
        spark.read.table("traffic_by_minute"),
        *("start", "prefix", "messages", "bytes", "publishers"),
    )
    assert keyed(found, 2) == oracles.traffic(rows, 2, 60_000_000)
    # The recordings were given their incarnations when they were written.
    columns = [name for name in LOSS_COLUMNS if name != "incarnation"]
    expected = oracles.losses(rows, 3_600_000_000)
    assert keyed(answer(spark.read.table("losses_by_hour"), *columns), 2) == {
        (recorder, start): lost for (recorder, _, start), lost in expected.items()
    }

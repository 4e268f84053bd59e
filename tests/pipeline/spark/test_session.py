"""What the session has Spark's processes do."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from sbus.pipeline.spark.home import home_without_zip


def imported_from(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [pyspark.__file__]})


def test_python_processes_do_not_compile_the_modules_of_spark(spark: SparkSession) -> None:
    """They import those whose bytecode is on disk, and not those in a zip."""
    paths = spark.range(1).mapInArrow(imported_from, "path STRING").toArrow()
    assert paths["path"].to_pylist() == [pyspark.__file__]


@pytest.mark.usefixtures("spark")
def test_programs_that_are_started_later_have_the_home_of_spark_that_they_would_have() -> None:
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize("is_package", [True, False])
def test_only_the_package_is_replaced_as_the_home_and_with_its_settings(
    tmp_path: Path, is_package: bool
) -> None:
    package = tmp_path / "pyspark"
    for name in ("bin", "jars", "conf", "python"):
        (package / name).mkdir(parents=True)
    (package / "bin/spark-submit").touch()
    found = package if is_package else package / "spark-distribution"
    before = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = dict(before)
    with home_without_zip(environment, lambda: str(found), package):
        assert ("SPARK_HOME" in environment) == is_package
        if is_package:
            links = [*Path(environment["SPARK_HOME"]).iterdir()]
            assert {link.name for link in links} == {"bin", "jars", "conf"}
            assert all(link.resolve() == package / link.name for link in links)
    assert environment == before
    environment["SPARK_HOME"] = str(package)
    with home_without_zip(environment, lambda: str(found), package):
        assert environment["SPARK_HOME"] == str(package)
    assert environment["SPARK_HOME"] == str(package)

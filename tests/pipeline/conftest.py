"""What tests with Spark share: one session, because starting one takes longer than most tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.spark_program import INTERPRETED, java_for_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS_MAX = 120.0


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Two processors of this machine, one reducer for each."""
    from sbus.pipeline.spark.session import spark_session

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.files.minPartitionNum": "2",
        "spark.sql.adaptive.enabled": "false",
        **INTERPRETED,
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in java_for_tests().items():
            patched.setenv(name, value)
        session = spark_session(master="local[2]", conf=conf)
    java = session.sparkContext._gateway
    assert java is not None
    yield session
    session.stop()
    # Java ends when nobody holds its standard input any more.
    java.shutdown()
    process = java.proc
    process.stdin.close()
    process.wait(STOP_SECONDS_MAX)

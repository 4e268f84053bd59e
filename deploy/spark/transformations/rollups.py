"""The results of the jobs on the recording's tables, computed anew with each run."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from sbus.pipeline.jobs.anomalies import anomalies
from sbus.pipeline.jobs.clients import slow_consumers, users
from sbus.pipeline.jobs.flows import deliveries, senders
from sbus.pipeline.jobs.gaps import losses
from sbus.pipeline.jobs.latency import latency
from sbus.pipeline.jobs.traffic import traffic

HOUR_SECONDS = 3_600.0


def table(name: str) -> DataFrame:
    return SparkSession.active().read.table(name)


@dp.materialized_view
def traffic_by_minute() -> DataFrame:
    return traffic(table("messages"))


@dp.materialized_view
def deliveries_by_prefix() -> DataFrame:
    return deliveries(table("messages"))


@dp.materialized_view
def senders_by_prefix() -> DataFrame:
    return senders(table("messages"))


@dp.materialized_view
def losses_by_hour() -> DataFrame:
    return losses(table("messages"), window_seconds=HOUR_SECONDS)


@dp.materialized_view
def latency_by_minute() -> DataFrame:
    return latency(table("messages"))


@dp.materialized_view
def anomalies_by_minute() -> DataFrame:
    return anomalies(table("messages"))


@dp.materialized_view
def use_by_user() -> DataFrame:
    return users(table("messages"), table("clients"), table("events"))


@dp.materialized_view
def clients_that_were_slow() -> DataFrame:
    return slow_consumers(table("clients"))

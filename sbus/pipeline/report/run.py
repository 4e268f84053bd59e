"""From a recording to a page on disk, telling on a terminal how far it is."""

import sys
from pathlib import Path

import click
from pyspark.sql import SparkSession

from sbus.pipeline.report.facts import Scope, gather
from sbus.pipeline.report.page import render
from sbus.pipeline.results import replace_file
from sbus.pipeline.tables import Asked, read_table


def write_report(
    spark: SparkSession, asked: Asked, page: Path, *, title: str, scope: Scope
) -> None:
    """Raises OSError when the page cannot be written."""
    on_terminal = sys.stderr.isatty()

    def step(what: str) -> None:
        if on_terminal:
            click.echo(f"report: {what} ...", err=True)

    facts = gather(lambda table: read_table(spark, asked, table), scope, step)
    text = render(facts, title=title)
    replace_file(page, lambda new: new.write_text(text, encoding="utf-8"))

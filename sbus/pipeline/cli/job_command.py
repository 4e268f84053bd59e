"""What all job commands share: option types, options, a Spark session, results and errors.

Starting Spark takes seconds, so errors that can be found before are found before. On a terminal the
command tells that Spark is starting, and then its progress.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sbus.cli.optional_packages import needs_packages
from sbus.cli.terminal.units import parse_seconds
from sbus.errors import ConfigurationError, SbusError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sbus.pipeline.spark.selection import Table

EXTRAS = {"pyspark": "spark", "pyarrow": "spark", "bokeh": "report", "jinja2": "report"}
"""The extra that installs a package."""

Verb = TypeVar("Verb", bound=Callable[..., Any])


class JobFailed(SbusError):
    """Spark failed; the text is the first reason that it gave."""


def duration(text: str) -> float:
    """Seconds, from a length of time."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def utc_time(text: str) -> datetime:
    """A time in ISO 8601, in UTC unless it has an offset."""
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time, such as 2026-03-01T09:30 (UTC)") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """The values of the common options."""

    location: str
    limits: dict[str, Any]
    """Which rows are read, as for `selection.read`."""
    master: str | None
    memory: str
    out: Path | None = None
    rows_max: int = 0

    @contextmanager
    def session(self, *, is_short: bool = False) -> "Iterator[SparkSession]":
        """A Spark session for the block, or the one there is; its errors become JobFailed."""
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from sbus.pipeline.spark.session import spark_session
        from sbus.pipeline.store.reader import Recording

        Recording(self.location).check()
        is_ours = SparkSession.getActiveSession() is None
        on_terminal = sys.stderr.isatty()
        if is_ours and on_terminal:
            click.echo("starting Spark ...", err=True)
        progress = {"spark.ui.showConsoleProgress": str(on_terminal).lower()}
        spark = spark_session(
            master=self.master, memory=self.memory, conf=progress, is_short=is_short
        )
        try:
            yield spark
        except PySparkException as error:
            raise JobFailed(first_reason(str(error))) from error
        finally:
            if is_ours:
                spark.stop()

    def read(self, spark: "SparkSession", table: "Table") -> "DataFrame":
        from sbus.pipeline.spark.selection import read

        return read(spark, self.location, table, **self.limits)

    def earlier(self, location: str) -> "JobRun":
        """The same hosts of an earlier recording of the same buses, at all times.

        Raises ConfigurationError if it has other recorders: their names are made of machine and
        bus.
        """
        from sbus.pipeline.store.reader import Recording
        from sbus.pipeline.store.recorder_file import recorder_of

        ours, theirs = (
            sorted({recorder_of(name) for name in Recording(each).tables("messages")})
            for each in (self.location, location)
        )
        if ours != theirs:
            raise ConfigurationError(
                f"{location} is no recording of the same bus: its recorder is "
                f"{', '.join(theirs) or 'none'}, not {', '.join(ours) or 'none'}"
            )
        return replace(self, location=location, limits={"hosts": self.limits["hosts"]})

    def answer(
        self,
        job: "Callable[..., DataFrame]",
        *tables: "Table",
        hidden: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        """Run the job on these tables, and show or write its result. Columns that are `hidden` have
        no room on a terminal."""
        from sbus.pipeline.cli.results import check_output, show_result, write_result

        if self.out is not None:
            check_output(self.out)
        with self.session(is_short=True) as spark:
            result = job(*(self.read(spark, table) for table in tables), **options)
            if self.out is None:
                show_result(result.drop(*hidden), self.rows_max)
            else:
                rows = write_result(result, self.out)
                click.echo(f"{self.out}: {rows:,} rows", err=True)


def first_reason(text: str) -> str:
    """The line of a traceback through several processes that names the cause."""
    own = re.search(r"^.*?sbus\.errors\.\w+: (.+)$", text, re.MULTILINE)
    return own[1] if own else text.strip().partition("\n")[0]


def takes(*parameters: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    """Add arguments and options, in this order, to a verb."""
    return lambda verb: functools.reduce(lambda built, add: add(built), reversed(parameters), verb)


def reads_recording(verb: Verb) -> Verb:
    """Add the common options; the verb's first parameter becomes a `JobRun` with their values."""

    @functools.wraps(verb)
    def with_run(location: str, **options: Any) -> None:
        limits = {name: options.pop(name) for name in ("since", "until", "hosts")}
        common = ("master", "memory", "out", "rows_max")
        own = {name: options.pop(name) for name in common if name in options}
        with needs_packages(EXTRAS):
            verb(JobRun(location=location, limits=limits, **own), **options)

    return takes(*_COMMON)(with_run)  # type: ignore[return-value]


def answers(verb: Verb) -> Verb:
    """Like `reads_recording`, with options for the result."""
    return reads_recording(takes(*_OUTPUT)(verb))


LIMITS = (
    click.option(
        "--since", type=utc_time, metavar="TIME", help="Only what was recorded from then on."
    ),
    click.option("--until", type=utc_time, metavar="TIME", help="Only what was recorded before."),
    click.option("--host", "hosts", multiple=True, help="Only of this host; repeatable."),
)
"""Which rows are read."""
_COMMON = (
    click.argument("location", type=click.Path(), metavar="RECORDING"),
    *LIMITS,
    click.option(
        "--master",
        help="Spark's master URL.  [default: what spark-submit said, else this machine's "
        "processors]",
    ),
    click.option("--memory", default="1g", show_default=True, help="For Spark's driver process."),
)
_OUTPUT = (
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the result to FILE.parquet, FILE.csv or FILE.json instead of a table here.",
    ),
    click.option(
        "--rows",
        "rows_max",
        type=click.IntRange(min=1),
        default=50,
        show_default=True,
        help="How many rows of a table to show.",
    ),
)

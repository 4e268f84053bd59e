"""How a verb of the pipeline runs: the options they all have, a session, a result, an error.

What can be wrong is looked for before Spark is started, which takes some seconds; on a terminal it
is said that it is being started, and then how far it is. This module knows no question.
"""

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sbus.errors import ConfigurationError, SbusError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sbus.pipeline.tables import Asked, Table

PACKAGES = {"pyspark": "spark", "pyarrow": "spark", "plotly": "report"}
"""Each with the extra that brings it."""
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

Verb = TypeVar("Verb", bound=Callable[..., Any])


class JobFailed(SbusError):
    """Spark could not do it; the text is the first that it said about why."""


class Seconds(click.ParamType[float]):
    """A length of time such as 500ms, 10s, 5m, 1h, 1d."""

    name = "duration"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value)
        if match is None or not (seconds := float(match[1]) * _SECONDS[match[2]]):
            self.fail(f"{value!r} is no length of time, such as 500ms, 10s, 5m, 1h", param, ctx)
        return seconds


class Moment(click.ParamType[datetime]):
    """A time in ISO 8601, UTC unless it says otherwise."""

    name = "time"

    def convert(
        self, value: str | datetime, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time, such as 2026-03-01T09:30 (UTC)", param, ctx)
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the common options say."""

    asked: "Asked"
    master: str | None
    memory: str
    out: Path | None = None
    rows_max: int = 0

    @contextmanager
    def session(self) -> "Iterator[SparkSession]":
        """Spark, for the length of the block, or the session that there is already; what it fails
        at comes out as JobFailed."""
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from sbus.pipeline.session import spark_session
        from sbus.pipeline.tables import check_recording

        check_recording(self.asked.directory)
        is_ours = SparkSession.getActiveSession() is None
        on_terminal = sys.stderr.isatty()
        if is_ours and on_terminal:
            click.echo("starting Spark ...", err=True)
        progress = {"spark.ui.showConsoleProgress": str(on_terminal).lower()}
        spark = spark_session(master=self.master, memory=self.memory, conf=progress)
        try:
            yield spark
        except PySparkException as error:
            raise JobFailed(first_reason(str(error))) from error
        finally:
            if is_ours:
                spark.stop()

    def answer(self, job: "Callable[[Callable[[Table], DataFrame]], DataFrame]") -> None:
        """Do the job, which is given the tables by name, and show or write what comes of it."""
        from sbus.pipeline.results import check_output, show_result, write_result
        from sbus.pipeline.tables import read_table

        out = None if self.out is None else check_output(self.out)
        with self.session() as spark:
            result = job(lambda table: read_table(spark, self.asked, table))
            if out is None:
                show_result(result, self.rows_max)
            else:
                rows = write_result(result, out)
                click.echo(f"{out}: {rows:,} rows", err=True)


def first_reason(text: str) -> str:
    """Of a traceback through several processes the line that a person can use."""
    own = re.search(r"^.*?sbus\.errors\.\w+: (.+)$", text, re.MULTILINE)
    return own[1] if own else text.strip().partition("\n")[0]


@contextmanager
def needs_packages() -> Iterator[None]:
    """A package that is not installed is an error that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        raise ConfigurationError(
            f"this needs the package {package}: pip install 'sbus[{PACKAGES[package]}]'"
        ) from error


def reads_recording(verb: Verb) -> Verb:
    """The verb's first parameter is a `Run`, made of the options it gets from here."""

    @functools.wraps(verb)
    def with_run(
        directory: Path,
        since: datetime | None,
        until: datetime | None,
        hosts: tuple[str, ...],
        master: str | None,
        memory: str,
        **options: Any,
    ) -> None:
        with needs_packages():
            from sbus.pipeline.tables import Asked

            asked = Asked(directory=directory, since=since, until=until, hosts=hosts)
            kept = {name: options.pop(name) for name in ("out", "rows_max") if name in options}
            verb(Run(asked=asked, master=master, memory=memory, **kept), **options)

    for decorate in reversed(_COMMON):
        with_run = decorate(with_run)
    return with_run  # type: ignore[return-value]


def answers(verb: Verb) -> Verb:
    """As `reads_recording`, with the options about where its answer goes."""
    for decorate in reversed(_OUTPUT):
        verb = decorate(verb)
    return reads_recording(verb)


_COMMON = (
    click.argument("directory", type=click.Path(path_type=Path), metavar="RECORDING"),
    click.option("--since", type=Moment(), help="Only what was recorded from then on."),
    click.option("--until", type=Moment(), help="Only what was recorded before."),
    click.option("--host", "hosts", multiple=True, help="Only of this host; repeatable."),
    click.option(
        "--master",
        help="Where Spark runs, in its words.  [default: what spark-submit said, else this "
        "machine's processors]",
    ),
    click.option("--memory", default="1g", show_default=True, help="Of Spark's own process."),
)
_OUTPUT = (
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the answer to FILE.parquet, FILE.csv or FILE.json instead of a table here.",
    ),
    click.option(
        "--rows",
        "rows_max",
        type=click.IntRange(min=1),
        default=50,
        show_default=True,
        help="How many rows of a table to show here.",
    ),
)

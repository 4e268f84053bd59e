"""The verbs of `python -m sbus.pipeline`: their options, and which job each of them is.

What a verb does is in `sbus.pipeline.jobs`, how it runs in `running.py`, and both load Spark when
it is used. This module holds no logic.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

import click

from sbus.pipeline.running import Run, Seconds, answers, needs_packages, reads_recording

Verb = TypeVar("Verb", bound=Callable[..., object])


def by_prefix(verb: Verb) -> Verb:
    verb = click.option(
        "--separator",
        type=click.Choice(["/", "."]),
        default="/",
        help="Of segments: . for a bus of the dot dialect.",
    )(verb)
    return click.option(
        "--depth",
        type=click.IntRange(1, 128),
        default=2,
        show_default=True,
        help="How many segments of a key are its prefix.",
    )(verb)


by_window = click.option(
    "--window",
    "window_seconds",
    type=Seconds(),
    default="1m",
    show_default=True,
    help="Length of the windows that are looked at, such as 10s, 5m, 1h.",
)


@click.command()
@answers
@by_prefix
@by_window
def traffic(run: Run, depth: int, separator: str, window_seconds: float) -> None:
    """How much is sent, under which prefix, when: messages, bytes and publishers."""
    from sbus.pipeline.jobs.traffic import traffic as job

    run.answer(
        lambda table: job(
            table("messages"), depth=depth, separator=separator, window_seconds=window_seconds
        )
    )


@click.command()
@answers
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--by", type=click.Choice(["messages", "bytes"]), default="messages", show_default=True
)
def hot_keys(run: Run, top: int, by: Literal["messages", "bytes"]) -> None:
    """Which keys carry the most."""
    from sbus.pipeline.jobs.hot_keys import hot_keys as job

    run.answer(lambda table: job(table("messages"), top=top, by=by))


@click.command()
@answers
@click.option(
    "--by",
    type=click.Choice(["recipients", "prefix"]),
    default="recipients",
    show_default=True,
    help="How many messages went to so many; or deliveries below each prefix.",
)
@by_prefix
def fan_out(run: Run, by: str, depth: int, separator: str) -> None:
    """To how many clients messages go, and what nobody is interested in."""
    from sbus.pipeline.jobs.fan_out import deliveries
    from sbus.pipeline.jobs.fan_out import fan_out as job

    if by == "prefix":
        run.answer(lambda table: deliveries(table("messages"), depth=depth, separator=separator))
    else:
        run.answer(lambda table: job(table("messages")))


@click.command()
@answers
def slow_consumers(run: Run) -> None:
    """Who does not keep up: growing backlogs, discarded messages, held publishers."""
    from sbus.pipeline.jobs.slow_consumers import slow_consumers as job

    run.answer(lambda table: job(table("clients")))


@click.command()
@answers
def users(run: Run) -> None:
    """What each user takes of the bus: clients, messages and bytes in and out, losses."""
    from sbus.pipeline.jobs.users import users as job

    run.answer(lambda table: job(table("clients")))


@click.command()
@answers
@click.option("--broker", is_flag=True, help="The broker's own histogram, of all deliveries.")
@by_window
def latency(run: Run, broker: bool, window_seconds: float) -> None:
    """How long messages take: the recorder's probes, one each second, in milliseconds."""
    from sbus.pipeline.jobs.latency import broker_latency
    from sbus.pipeline.jobs.latency import latency as job

    if broker:
        run.answer(lambda table: broker_latency(table("events")))
    else:
        run.answer(lambda table: job(table("messages"), window_seconds=window_seconds))


@click.command()
@answers
@by_prefix
@by_window
@click.option(
    "--score",
    "score_min",
    type=click.FloatRange(min=0, min_open=True),
    default=6.0,
    show_default=True,
    help="How many usual deviations off is strange.",
)
def anomalies(
    run: Run, depth: int, separator: str, window_seconds: float, score_min: float
) -> None:
    """When a prefix had more or fewer messages than it usually has, and how many."""
    from sbus.pipeline.jobs.anomalies import anomalies as job

    run.answer(
        lambda table: job(
            table("messages"),
            depth=depth,
            separator=separator,
            window_seconds=window_seconds,
            score_min=score_min,
        )
    )


@click.command()
@answers
@click.option("--each", is_flag=True, help="Every single gap, instead of sums of windows.")
@by_window
def gaps(run: Run, each: bool, window_seconds: float) -> None:
    """What is missing from the recording, where, and how much."""
    from sbus.pipeline.jobs.gaps import gaps as job
    from sbus.pipeline.jobs.gaps import losses

    if each:
        run.answer(lambda table: job(table("messages")))
    else:
        run.answer(lambda table: losses(table("messages"), window_seconds=window_seconds))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="RECORDING")
@click.option(
    "--before",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Only of dates before this one.  [default: today, in UTC]",
)
@click.option(
    "--file-mib",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="How large files may become.",
)
def compact(directory: Path, before: datetime | None, file_mib: int) -> None:
    """Make few large Parquet files of many small ones, while others record and read."""
    with needs_packages():
        from sbus.pipeline.compaction import compact as job

        made = job(
            directory,
            before=None if before is None else before.date(),
            small_bytes=file_mib * 1024 * 1024,
        )
    click.echo(f"{len(made):,} new files with {sum(file.rows or 0 for file in made):,} rows")


@click.command()
@reads_recording
@click.option("-a", "--address", help="The bus to publish on.  [default: $SBUS_ADDRESS]")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="2: twice as fast as it was.",
)
@click.option("--at-once", is_flag=True, help="As fast as the bus takes it.")
def replay(run: Run, address: str | None, speed: float, at_once: bool) -> None:
    """Publish what was recorded onto a bus again, as far apart as it was."""
    from sbus.client import blocking
    from sbus.pipeline.jobs.replay import replay as job
    from sbus.pipeline.tables import read_table

    with blocking.connect(address) as bus:
        bus.control("echo/off")
        with run.session() as spark:
            messages = read_table(spark, run.asked, "messages")
            sent = job(messages, bus.publish, speed=None if at_once else speed)
        bus.sync()
    click.echo(f"{sent:,} messages published on {bus.address}", err=True)


@click.command()
@reads_recording
@click.option(
    "--out",
    "page",
    type=click.Path(path_type=Path),
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="Where to write the page.",
)
@click.option("--title", default="Bus report", show_default=True)
@by_prefix
@click.option(
    "--window",
    "window_seconds",
    type=Seconds(),
    help="Length of the windows of its plots.  [default: what suits the recording]",
)
def report(
    run: Run, page: Path, title: str, depth: int, separator: str, window_seconds: float | None
) -> None:
    """Everything there is to know at a glance, as one page with plots that needs no network."""
    from sbus.pipeline.report.facts import Scope
    from sbus.pipeline.report.run import write_report
    from sbus.pipeline.results import check_folder

    check_folder(page)
    scope = Scope(depth=depth, separator=separator, window_seconds=window_seconds)
    with run.session() as spark:
        write_report(spark, run.asked, page, title=title, scope=scope)
    click.echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB", err=True)

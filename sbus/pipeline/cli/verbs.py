"""The verbs of `python -m sbus.pipeline`: their options, and the job of each.

Options are named as the parameters of the job. A verb imports its job when it is used, because that
loads Spark.
"""

import functools
import sys
from pathlib import Path
from typing import Any

import click

from sbus.errors import ConfigurationError
from sbus.pipeline.cli.job_command import JobRun, answers, duration, reads_recording, takes

by_prefix = takes(
    click.option(
        "--depth",
        type=click.IntRange(1, 128),
        default=2,
        show_default=True,
        help="How many segments of a key are its prefix.",
    ),
    click.option(
        "--separator",
        type=click.Choice(["/", "."]),
        default="/",
        help="Between segments: . for a bus of the dot dialect.",
    ),
)
by_window = click.option(
    "--window",
    "window_seconds",
    type=duration,
    default="1m",
    show_default=True,
    help="Length of a window, such as 10s, 5m, 1h.",
)


@click.command()
@answers
@by_prefix
@by_window
def traffic(run: JobRun, **options: Any) -> None:
    """How much is sent, under which prefix, when: messages, bytes and publishers."""
    from sbus.pipeline.jobs.traffic import traffic

    run.answer(traffic, "messages", **options)


@click.command()
@answers
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--by", type=click.Choice(["messages", "bytes"]), default="messages", show_default=True
)
def hot_keys(run: JobRun, **options: Any) -> None:
    """Which keys carry the most."""
    from sbus.pipeline.jobs.traffic import hot_keys

    run.answer(hot_keys, "messages", **options)


@click.command()
@answers
@click.option(
    "--by",
    type=click.Choice(["recipients", "prefix"]),
    default="recipients",
    show_default=True,
    help="Messages by number of recipients, or deliveries by prefix.",
)
@by_prefix
def fan_out(run: JobRun, by: str, **options: Any) -> None:
    """How many clients receive a message, and which messages nobody receives."""
    from sbus.pipeline.jobs.flows import deliveries, fan_out

    if by == "prefix":
        run.answer(deliveries, "messages", **options)
    else:
        run.answer(fan_out, "messages")


@click.command()
@answers
def slow_consumers(run: JobRun) -> None:
    """Who does not keep up: growing backlogs, discarded messages, held publishers."""
    from sbus.pipeline.jobs.clients import slow_consumers

    run.answer(slow_consumers, "clients", hidden=("incarnation",))


@click.command()
@answers
def users(run: JobRun) -> None:
    """How much each user uses: messages and bytes published, clients; received and lost, of those
    clients that a snapshot has (MEASURED)."""
    from sbus.pipeline.jobs.clients import users

    run.answer(users, "messages", "clients", "events")


@click.command()
@answers
@click.option("--broker", is_flag=True, help="The broker's own histogram, of all deliveries.")
@by_window
def latency(run: JobRun, broker: bool, **options: Any) -> None:
    """How long messages take: the recorder's probes, one each second, in milliseconds."""
    from sbus.pipeline.jobs.latency import broker_latency, latency

    if broker:
        run.answer(broker_latency, "events")
    else:
        run.answer(latency, "messages", **options)


@click.command()
@answers
@by_prefix
@by_window
@click.option(
    "--score",
    "score_min",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="How many usual deviations are unusual.",
)
def anomalies(run: JobRun, **options: Any) -> None:
    """When a prefix had more or fewer messages than usual: from when to when, and how many."""
    from sbus.pipeline.jobs.anomalies import anomalies

    hidden = ("usual", "spread", "score", "why")
    run.answer(anomalies, "messages", hidden=hidden, **options)


@click.command()
@answers
@click.option("--each", is_flag=True, help="Every single gap, instead of sums by window.")
@by_window
def gaps(run: JobRun, each: bool, **options: Any) -> None:
    """What is missing from the recording, where, and how much."""
    from sbus.pipeline.jobs.gaps import gaps, losses

    if each:
        run.answer(gaps, "messages", hidden=("incarnation",))
    else:
        run.answer(losses, "messages", hidden=("incarnation", "start"), **options)


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
def replay(run: JobRun, address: str | None, speed: float, at_once: bool) -> None:
    """Publish recorded messages onto a bus again, with their original intervals. It must not be
    recorded into RECORDING meanwhile, which would hold them twice."""
    from sbus.client import blocking
    from sbus.pipeline.jobs.replay import replay
    from sbus.pipeline.store.row_batches import RecorderIdentity
    from sbus.pipeline.store.writer import is_written

    with blocking.connect(address) as bus:
        if is_written(Path(run.location), RecorderIdentity.here(bus.address).recorder):
            raise ConfigurationError(
                f"{bus.address} is being recorded in {run.location}, which would hold its messages "
                "twice: replay onto another bus, or stop the recorder meanwhile"
            )
        bus.control("echo/off")
        with run.session() as spark:
            messages = run.read(spark, "messages")
            sent = replay(messages, bus.publish, speed=None if at_once else speed)
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
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="EARLIER",
    help="Say what has changed since this recording of the same bus; --since and --until do not "
    "apply to it.",
)
@by_prefix
@click.option(
    "--window",
    "window_seconds",
    type=duration,
    help="Length of the windows of its plots.  [default: depends on the recording]",
)
def report(run: JobRun, page: Path, title: str, against: Path | None, **options: Any) -> None:
    """The results of all jobs on one page, with plots; the page needs no network."""
    from sbus.pipeline.cli.results import check_folder, replace_file
    from sbus.pipeline.report.comparison import compare
    from sbus.pipeline.report.facts import Scope, gather
    from sbus.pipeline.report.page import render

    def tell(step: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"report: {step} ...", err=True)

    check_folder(page)
    earlier = None if against is None else run.earlier(str(against))
    with run.session() as spark:
        read = functools.partial(run.read, spark)
        facts = gather(read, Scope(**options), tell)
        comparison = None
        if earlier is not None:
            tell("what has changed")
            comparison = compare(read, functools.partial(earlier.read, spark), facts)
        text = render(facts, title=title, comparison=comparison)
        replace_file(page, lambda new: new.write_text(text, encoding="utf-8"))
    click.echo(f"{page}: {page.stat().st_size / 1e6:.1f} MB", err=True)

"""`sbusctl bench`: how fast the running bus is, as its users see it."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

import sbus
from sbus.cli.sbusctl.shared_options import SelectedBus, json_option, verb
from sbus.errors import SbusError

if TYPE_CHECKING:
    from rich.text import Text

    from sbus.cli.sbusctl.bench_works import WorkResult
    from sbus.client.admin import AdminConnection

WORKS = ("latency", "throughput", "fan-out", "subscriptions", "flood")


@verb(
    "sbusctl bench",
    "sbusctl bench latency --rate 1000",
    "sbusctl bench fan-out --clients 10 --size 4096",
    "sbusctl bench --json | jq '{work, lost, broker_cpu_us}'",
)
@click.argument("works", nargs=-1, type=click.Choice(WORKS), metavar="[WORK]...")
@click.option(
    "--size", type=click.IntRange(min=0), default=64, show_default=True, help="Payload bytes."
)
@click.option(
    "--clients",
    type=click.IntRange(1, 1_000),
    default=20,
    show_default=True,
    help="Subscribers of fan-out, publishers of flood.",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(0, 1_000_000),
    default=10_000,
    show_default=True,
    help="Other subscriptions in the work of this name.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 60, min_open=True),
    default=2.0,
    show_default=True,
    help="How long each work publishes.",
)
@click.option("--messages", type=click.IntRange(min=1), help="End a work after this many messages.")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Messages per second.  [default: as many as possible]",
)
@json_option
def bench(
    selected: SelectedBus,
    works: tuple[str, ...],
    size: int,
    clients: int,
    subscriptions: int,
    seconds: float,
    messages: int | None,
    rate: float | None,
    as_json: bool,
) -> None:
    """Measure the speed of the running bus.

    WORK is one or more of these; the default is all of them, in this order:

    \b
      latency        One message at a time: the time of a round trip.
      throughput     One publisher, one subscriber.
      fan-out        One publisher, many subscribers.
      subscriptions  Latency beside many subscriptions that do not match.
      flood          Latency while others publish without waiting for their subscriber.

    IN/S and OUT/S are the messages that were published and delivered per second, LOST is how many
    the bus dropped for a subscriber, and P50, P99 and MAX are times of round trips. CPU/MSG is the
    CPU time of all workers for each delivered message, those of other clients included; it is known
    where the admin socket may be used.

    All keys begin with sbusctl/bench/, and the limits of the user apply. But a work takes all the
    CPU time that it gets, unless there is a rate: think of others who use the bus. The clients use
    the Python library, in up to three processes, which is part of what is measured; python -m
    sbus.bench measures the broker alone.
    """
    from sbus.cli.sbusctl.bench_load import WAIT_SECONDS_MAX, Client, LoadPlan
    from sbus.cli.sbusctl.bench_works import Bench, measure
    from sbus.cli.terminal.screen import Screen
    from sbus.cli.terminal.standard_output import write_json
    from sbus.protocol.keys import DIALECTS

    def connect() -> Client:
        return sbus.blocking.connect(
            selected.address, losses="report", timeout_seconds=WAIT_SECONDS_MAX, **selected.link
        )

    load = LoadPlan(seconds=seconds, size_bytes=size, rate=rate, messages_max=messages)
    asked = Bench(
        connect=connect,
        dialect=DIALECTS[selected.link["dialect"]],
        plan=load,
        clients=clients,
        subscriptions=subscriptions,
    )
    screen = Screen()
    results = []
    with _connect_admin(selected) as admin, screen.repainting(whole=False) as show_lines:
        for work in works or WORKS:
            results.append(measure(asked, work, admin))
            if as_json:
                write_json(results[-1])
            elif screen.is_terminal or len(results) == len(works or WORKS):
                show_lines(result_lines(results, screen.width))


def _connect_admin(
    selected: SelectedBus,
) -> "AbstractContextManager[AdminConnection | None]":
    """None for a user who may not, or where there is no admin socket."""
    try:
        return selected.connect_admin()
    except SbusError:
        return nullcontext()


def result_lines(results: "list[WorkResult]", width: int | None) -> "list[Text]":
    """A line for each work."""
    from sbus.cli.sbusctl.bench_works import WorkResult
    from sbus.cli.terminal.tables import Field, table
    from sbus.cli.terminal.units import UNKNOWN, count, microseconds

    def trip(one: WorkResult, percentile: str) -> str:
        return microseconds(getattr(one.round_trip, percentile)) if one.round_trip else UNKNOWN

    def cpu(one: WorkResult) -> str:
        return UNKNOWN if one.broker_cpu_us is None else microseconds(one.broker_cpu_us)

    fields: list[Field[WorkResult]] = [
        Field("WORK", lambda one: one.work, right=False),
        Field("PUBS", lambda one: count(one.publishers), rank=2),
        Field("SUBS", lambda one: count(one.subscribers), rank=2),
        Field("IN/S", lambda one: count(one.published / one.seconds)),
        Field("OUT/S", lambda one: count(one.delivered / one.seconds)),
        Field("LOST", lambda one: count(one.lost)),
        Field("P50", lambda one: trip(one, "p50_us")),
        Field("P99", lambda one: trip(one, "p99_us")),
        Field("MAX", lambda one: trip(one, "max_us"), rank=1),
        Field("CPU/MSG", cpu),
    ]
    return table(fields, results, width)

"""`python -m sbus.bench NAME`: options in, one benchmark run, a table or JSON out.

Ctrl-C, SIGTERM and any failure end everything that was started. No measuring is done here.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from sbus.bench import blocks, delivery_costs, floods, round_trips
from sbus.bench import soak as soaking
from sbus.bench.figures import format_cpus, parse_cpus
from sbus.bench.programs import compile_programs
from sbus.bench.report import Result
from sbus.bench.servers import PACE_LIFTED, broker
from sbus.bench.streams import Traffic
from sbus.bench.terms import Terms
from sbus.errors import SbusError
from sbus.limits import Limits

SOAK_INTERVAL_SECONDS = 10.0
SIZE_BYTES = click.IntRange(35, Limits().packet_bytes_max)
COUNT = click.IntRange(min=1)
WORKERS = click.IntRange(1, 64)

Command = Callable[..., None]


def cpu_option(name: str, default: Callable[[Iterable[int]], int]) -> Callable[[Command], Command]:
    """CPUs as in `0,2-3`; `default` chooses one of those that this process may use."""
    return click.option(
        name,
        type=parse_cpus,
        default=lambda: format_cpus(frozenset({default(os.sched_getaffinity(0))})),
        metavar="CPUS",
        help=f"Where it may run, as in 0,2-3; the {default.__name__} there is, if not given.",
    )


def size_option(command: Command) -> Command:
    return click.option(
        "--size", type=SIZE_BYTES, default=110, show_default=True, help="Bytes in a packet."
    )(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Every sample, as JSON.")(command)


def messages_option(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--messages", type=COUNT, default=default, show_default=True, help="Published, per run."
    )


def workers_option(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--workers", type=WORKERS, default=default, show_default=True, help="Of the broker."
    )


def subscribers_option(command: Command) -> Command:
    return click.option(
        "--subscribers", type=COUNT, default=50, show_default=True, help="In the fan-out."
    )(command)


def limit_option(command: Command) -> Command:
    return click.option(
        "--limit", "limits", metavar="NAME=VALUE", multiple=True, help="As for sbusd."
    )(command)


def repetitions_option(command: Command) -> Command:
    return click.option("--repetitions", type=COUNT, default=5, show_default=True)(command)


def common_options(command: Command) -> Command:
    """Of every benchmark that repeats short measurements on pinned CPUs."""
    for option in (
        repetitions_option,
        cpu_option("--broker-cpu", max),
        cpu_option("--load-cpu", min),
    ):
        command = option(command)
    return json_option(size_option(command))


def say(line: str) -> None:
    """Progress, where it does not mix with the result."""
    click.echo(line, err=True)


@contextmanager
def programs_directory() -> Iterator[Path]:
    """A temporary directory with the compiled programs in it."""
    with tempfile.TemporaryDirectory(prefix="sbus-bench-") as name:
        compile_programs(Path(name))
        yield Path(name)


@contextmanager
def terms_of(
    repetitions: int,
    broker_cpu: frozenset[int],
    load_cpu: frozenset[int],
    limits: Sequence[str] = (PACE_LIFTED,),
) -> Iterator[Terms]:
    with programs_directory() as directory:
        yield Terms(
            directory=directory,
            repetitions=repetitions,
            broker_cpus=broker_cpu,
            load_cpus=load_cpu,
            progress=say,
            limits=limits,
        )


def finish(result: Result, as_json: bool) -> None:
    """Print it; a result that is a failure is the exit status too."""
    click.echo(result.as_json() if as_json else result.as_text())
    if not result.succeeded:
        sys.exit(1)


@click.group()
def main() -> None:
    """Measurements of the broker; see docs/benchmarks.md for what each figure means."""


@main.command("one-to-one")
@common_options
@messages_option(200_000)
@workers_option(1)
def one_to_one(messages: int, workers: int, size: int, as_json: bool, **common: Any) -> None:
    """CPU per message, one publisher and one subscriber, against the relays."""
    traffic = Traffic(messages=messages, size_bytes=size)
    with terms_of(**common) as terms:
        result = delivery_costs.compare_with_relays("one-to-one", terms, traffic, workers)
    finish(result, as_json)


@main.command("fan-out")
@common_options
@messages_option(10_000)
@workers_option(1)
@subscribers_option
def fan_out(
    messages: int, workers: int, subscribers: int, size: int, as_json: bool, **common: Any
) -> None:
    """CPU per delivery, one publisher and many subscribers, against the relays."""
    traffic = Traffic(messages=messages, size_bytes=size, subscribers=subscribers)
    with terms_of(**common) as terms:
        result = delivery_costs.compare_with_relays("fan-out", terms, traffic, workers)
    finish(result, as_json)


@main.command("subscriptions")
@common_options
@messages_option(100_000)
@workers_option(1)
def subscriptions(messages: int, workers: int, size: int, as_json: bool, **common: Any) -> None:
    """What 20,000 literal and 10,000 wildcard patterns cost the messages they do not match."""
    traffic = Traffic(messages=messages, size_bytes=size)
    with terms_of(**common) as terms:
        result = delivery_costs.subscriptions(terms, traffic, workers, delivery_costs.CROWDS)
    finish(result, as_json)


@main.command("workers")
@common_options
@messages_option(100_000)
@click.option("--fan-out-messages", type=COUNT, default=5_000, show_default=True)
@subscribers_option
def workers(
    messages: int,
    fan_out_messages: int,
    subscribers: int,
    size: int,
    as_json: bool,
    **common: Any,
) -> None:
    """What it costs that publisher and subscriber have different workers."""
    single = Traffic(messages=messages, size_bytes=size)
    wide = Traffic(messages=fan_out_messages, size_bytes=size, subscribers=subscribers)
    with terms_of(**common) as terms:
        result = delivery_costs.workers(terms, single, wide)
    finish(result, as_json)


@main.command("round-trip")
@common_options
@click.option("--rounds", type=COUNT, default=10_000, show_default=True, help="Per repetition.")
def round_trip(rounds: int, size: int, as_json: bool, **common: Any) -> None:
    """Latency of a question and its answer: p50, p99, p99.9."""
    with terms_of(**common) as terms:
        result = round_trips.round_trip(terms, rounds, size)
    finish(result, as_json)


@main.command("flood")
@json_option
@size_option
@repetitions_option
@click.option(
    "--broker-cpu",
    type=parse_cpus,
    default=lambda: format_cpus(frozenset(os.sched_getaffinity(0))),
    metavar="CPUS",
    help="Where it may run, as in 0,2-3; everywhere, if not given.",
)
@cpu_option("--load-cpu", min)
@cpu_option("--victim-cpu", max)
@workers_option(2)
@click.option("--connections", type=COUNT, default=200, show_default=True, help="Of user A.")
@click.option("--listeners", type=COUNT, default=10, show_default=True, help="Of these.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=3.0, show_default=True)
@limit_option
def flood(
    workers: int,
    victim_cpu: frozenset[int],
    connections: int,
    listeners: int,
    seconds: float,
    size: int,
    as_json: bool,
    **common: Any,
) -> None:
    """What a user's round trips suffer from another user's flood. Needs root."""
    shape = floods.Flood(
        connections=connections, listeners=listeners, size_bytes=size, seconds=seconds
    )
    with terms_of(**common) as terms:
        result = floods.flood(terms, shape, victim_cpu, workers)
    finish(result, as_json)


@main.command("block")
@common_options
@messages_option(100_000)
@click.option(
    "--publishers", type=click.IntRange(1, 16), default=4, show_default=True, help="In each group."
)
def block(messages: int, publishers: int, size: int, as_json: bool, **common: Any) -> None:
    """What publishers suffer from others who are held back by `block`."""
    traffic = Traffic(messages=messages, size_bytes=size, publishers=publishers)
    with terms_of(**common) as terms:
        result = blocks.block(terms, traffic)
    finish(result, as_json)


@main.command("soak")
@click.option("--minutes", type=click.FloatRange(min=0.01), default=10.0, show_default=True)
@workers_option(8)
@size_option
@limit_option
@json_option
def soak(minutes: float, workers: int, size: int, limits: tuple[str, ...], as_json: bool) -> None:
    """Saturation for minutes: is anything wedged, lost uncounted, or growing?"""
    with programs_directory() as directory:
        result = soaking.soak(
            broker(directory, workers, None, (PACE_LIFTED, *limits)),
            soaking.Crowd(size_bytes=size),
            directory,
            seconds=minutes * 60,
            interval_seconds=SOAK_INTERVAL_SECONDS,
            settings={"workers": workers, "limits": " ".join(limits) or "default"},
            show=say,
        )
    finish(result, as_json)


def run() -> None:
    """The command, with failures told in one line and SIGTERM as gentle as Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main(prog_name="python -m sbus.bench")
    except SbusError as error:
        say(f"failed: {error}")
        sys.exit(1)


if __name__ == "__main__":
    run()

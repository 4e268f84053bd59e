"""`python -m sbus.bench NAME`: options in, one benchmark run, a table or JSON out.

Ctrl-C, SIGTERM and any failure end everything that was started.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sbus.bench import curve_report, footprint
from sbus.bench import soak as soaking
from sbus.bench.attacks import table as attack_table
from sbus.bench.attacks.programs import ATTACKS
from sbus.bench.curves import CURVES
from sbus.bench.figures import format_cpus, parse_cpus
from sbus.bench.peers import brokers, comparison, documents
from sbus.bench.peers.brokers import PEERS
from sbus.bench.programs import compile_programs
from sbus.bench.report import Result
from sbus.bench.servers import PACE_LIFTED, RunSettings
from sbus.errors import SbusError
from sbus.limits import Limits

SOAK_INTERVAL_SECONDS = 10.0
COUNT = click.IntRange(min=1)
WORKERS = click.IntRange(1, 64)
USABLE_CPUS = sorted(os.sched_getaffinity(0))
FIRST_CPU, LAST_CPU = USABLE_CPUS[:1], USABLE_CPUS[-1:]

Command = Callable[..., None]
Option = Callable[[Command], Command]


def option(name: str, kind: click.ParamType[Any], default: float, help_text: str) -> Option:
    return click.option(name, type=kind, default=default, help=help_text)


def cpu_option(name: str, default: Sequence[int]) -> Option:
    return click.option(
        name,
        type=parse_cpus,
        default=format_cpus(frozenset(default)),
        metavar="CPUS",
        help="Where it may run, as in 0,2-3.",
    )


def parse_variant(text: str) -> tuple[str, str, str]:
    """`LABEL:NAME=VALUE` in its parts; raises ValueError for anything else."""
    label, colon, setting = text.partition(":")
    name, equals, value = setting.partition("=")
    if not (label and colon and name and equals):
        raise ValueError(f"{text!r} is not LABEL:NAME=VALUE")
    return label, name, value


def several_option(
    name: str, parameter: str, values: Iterable[object], kind: click.ParamType[Any]
) -> Option:
    """May be given several times; by default all of these values are chosen."""
    return click.option(
        name, parameter, type=kind, multiple=True, default=tuple(values), help="Several times."
    )


json_option: Option = click.option("--json", "as_json", is_flag=True, help="Every sample, as JSON.")
size_option = option("--size", click.IntRange(35, Limits().packet_bytes_max), 110, "Of a packet.")
workers_option = option("--workers", WORKERS, 8, "Of the broker.")
repetitions_option = option("--repetitions", COUNT, 5, "Of every measurement.")
limit_option: Option = click.option(
    "--limit", "limits", metavar="NAME=VALUE", multiple=True, help="As for sbusd."
)
docs_option: Option = click.option(
    "--update-docs",
    "docs",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Write tables and plots to a page in this directory.",
)
REPEATED = (
    repetitions_option,
    cpu_option("--broker-cpu", LAST_CPU),
    cpu_option("--load-cpu", FIRST_CPU),
)
PINNED = (size_option, *REPEATED)
"""Of every benchmark that repeats short measurements on pinned CPUs."""


def show_progress(line: str) -> None:
    """On stderr, where it does not mix with the result."""
    click.echo(line, err=True)


@click.group(context_settings={"show_default": True})
def main() -> None:
    """Measurements of broker and pipeline; docs/benchmarks.md says what each figure means."""


def benchmark(
    name: str, *options: Option
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a command of a function from run settings and its own options to a result.

    A result that is a failure is the exit status too.
    """

    def register(measure: Callable[..., Result]) -> Callable[..., Result]:
        def command(
            as_json: bool,
            repetitions: int = 1,
            broker_cpu: frozenset[int] | None = None,
            load_cpu: frozenset[int] | None = None,
            limits: tuple[str, ...] = (PACE_LIFTED,),
            **own: Any,
        ) -> None:
            with tempfile.TemporaryDirectory(prefix="sbus-bench-") as directory:
                compile_programs(Path(directory))
                run = RunSettings(
                    directory=Path(directory),
                    repetitions=repetitions,
                    broker_cpus=broker_cpu,
                    load_cpus=load_cpu,
                    progress=show_progress,
                    limits=limits,
                )
                result = measure(run, **own)
            click.echo(result.as_json() if as_json else result.as_text())
            if not result.succeeded:
                sys.exit(1)

        decorated: Command = command
        for add in (json_option, *reversed(options)):
            decorated = add(decorated)
        main.command(name, help=measure.__doc__)(decorated)
        return measure

    return register


@benchmark(
    "peers",
    several_option("--peer", "names", PEERS, click.Choice(list(PEERS))),
    click.option(
        "--variant",
        type=parse_variant,
        metavar="LABEL:NAME=VALUE",
        help="Each sbus once more, with this environment variable.",
    ),
    option("--seconds", click.FloatRange(min=0.05), 2.0, "Of every work, per repetition."),
    docs_option,
    *PINNED,
)
def peers(
    run: RunSettings,
    names: tuple[str, ...],
    variant: tuple[str, str, str] | None,
    seconds: float,
    docs: Path | None,
    size: int,
) -> Result:
    """The same works through sbus, the relays and other brokers."""
    chosen = {name: PEERS[name] for name in names}
    if variant:
        label, *setting = variant
        own = [name for name, peer in chosen.items() if peer.is_sbus]
        chosen |= {f"{name}-{label}": brokers.variant(PEERS[name], *setting) for name in own}
    result = comparison.compare(run, chosen, size, seconds)
    if docs:
        documents.update(docs, result)
    return result


@benchmark(
    "footprint",
    repetitions_option,
    workers_option,
    option("--clients", COUNT, 1_000, "Connected and idle."),
    option("--patterns", click.IntRange(min=footprint.SUBSCRIBERS), 20_000, "All different."),
    option("--seconds", click.FloatRange(min=0.1), 10.0, "For which wake-ups are counted."),
)
def take_footprint(
    run: RunSettings, workers: int, clients: int, patterns: int, seconds: float
) -> Result:
    """What an idle bus takes, and what clients and patterns add to it."""
    crowd = footprint.Crowd(clients=clients, patterns=patterns)
    return footprint.take(run, crowd, workers, seconds)


@benchmark(
    "curves",
    several_option("--curve", "names", CURVES, click.Choice(list(CURVES))),
    option("--seconds", click.FloatRange(min=0.05), 1.0, "Of every work, per repetition."),
    docs_option,
    *REPEATED,
)
def curves(run: RunSettings, names: tuple[str, ...], seconds: float, docs: Path | None) -> Result:
    """Cost against workers, clients, subscriptions, size and changes."""
    result = curve_report.curves(run, names, seconds)
    if docs:
        curve_report.update(docs, result)
    return result


@benchmark(
    "attacks",
    several_option("--attack", "names", ATTACKS, click.Choice(list(ATTACKS))),
    several_option("--workers", "workers", (1, 2, 4), WORKERS),
    option("--seconds", click.FloatRange(min=0.1), 2.5, "Of every attack and every control."),
    option("--repetitions", COUNT, 1, "Of every measurement."),
    limit_option,
    docs_option,
)
def attacks(
    run: RunSettings,
    names: tuple[str, ...],
    workers: tuple[int, ...],
    seconds: float,
    docs: Path | None,
) -> Result:
    """What attacks cost another user: latency, connecting, losses. Needs root."""
    result = attack_table.attacks(run, names, workers, seconds)
    if docs:
        attack_table.update(docs, result)
    return result


@benchmark(
    "soak",
    option("--minutes", click.FloatRange(min=0.01), 10.0, "Of saturation."),
    workers_option,
    size_option,
    limit_option,
)
def soak(run: RunSettings, minutes: float, workers: int, size: int) -> Result:
    """Saturation for minutes: is anything wedged, lost uncounted, or growing?"""
    unpaced = replace(run, limits=(PACE_LIFTED, *run.limits))
    return soaking.soak(
        run,
        unpaced.broker(workers),
        soaking.Crowd(size_bytes=size),
        seconds=minutes * 60,
        interval_seconds=SOAK_INTERVAL_SECONDS,
        settings={"workers": workers, "limits": " ".join(run.limits) or "default"},
    )


@benchmark(
    "recording",
    option("--messages", click.IntRange(min=1000), 1_000_000, "Published."),
    option("--payload-bytes", click.IntRange(min=16), 100, "Of each."),
    several_option("--rate", "rates", (100_000, 150_000, 0), click.IntRange(min=0)),
    option("--publishers", COUNT, 1, "Which publish in turn."),
    click.option("--plain", is_flag=True, help="Record by a subscription."),
)
def recording(run: RunSettings, rates: tuple[int, ...], **load: Any) -> Result:
    """How many messages a second are recorded without loss; a rate of 0 is all that the bus takes.
    $TMPDIR is on the disk to be measured."""
    from sbus.bench.recording import Load, measure

    return measure(run, [Load(rate=rate, **load) for rate in rates])


@benchmark("spark", option("--rows", click.IntRange(min=1000), 5_000_000, "Of a recording."))
def spark(run: RunSettings, rows: int) -> Result:
    """How fast Spark reads a recording."""
    from sbus.bench.spark_reading import measure

    return measure(run, rows)


def run_command_line() -> None:
    """Report failures in one line, and end by SIGTERM as gently as by Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main(prog_name="python -m sbus.bench")
    except SbusError as error:
        show_progress(f"failed: {error}")
        sys.exit(1)


if __name__ == "__main__":
    run_command_line()

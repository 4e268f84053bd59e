"""The verbs of `sbusctl` that show figures of the bus: stats, top, workers, version.

What is shown is made in `stats_view.py` and `top.py`. This module holds no logic.
"""

import click

from sbus.cli.sbusctl.admin_options import as_json, interval
from sbus.cli.sbusctl.target import Target


@click.command(
    epilog="""\b
Examples:
  sbusctl stats
  sbusctl stats --watch --interval 1
  sbusctl stats --json | jq .traffic.discarded"""
)
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@interval
@as_json
@click.pass_obj
def stats(target: Target, watch: bool, interval_seconds: float, as_json: bool) -> None:
    """Show what goes through the bus.

    Totals, rates, losses, how full things are, and each worker. Every message that is accepted for
    a recipient is delivered, discarded, undelivered because the recipient left, or still in its
    backlog.
    """
    from sbus.cli.sbusctl.answers import again_and_again, show, show_each
    from sbus.cli.views.stats_view import stats_lines
    from sbus.protocol.admin import Stats
    from sbus.protocol.admin_results import StatsResult

    with target.connect_admin() as admin:
        if watch:
            looks = again_and_again(lambda: admin.ask(Stats(), StatsResult), interval_seconds)
            show_each(looks, as_json, stats_lines)
        else:
            show(admin.ask(Stats(), StatsResult), as_json, stats_lines)


@click.command(
    epilog="""\b
Examples:
  sbusctl top
  sbusctl top --by user --sort backlog
  sbusctl top --by key --depth 2
  sbusctl top --by worker --count 1 --json | jq '.rows[] | .cpu_percent'"""
)
@click.option(
    "--by",
    type=click.Choice(["client", "user", "key", "worker"]),
    default="client",
    show_default=True,
    help="What is compared; keys are put together by their beginnings.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 128),
    default=1,
    show_default=True,
    help="Of keys: how many segments make the beginning.",
)
@click.option(
    "--sort",
    type=click.Choice(["in", "bytes", "out", "lost", "backlog"]),
    default="in",
    show_default=True,
    help="By what: messages or bytes that come in, messages that go out, that are lost, that wait.",
)
@interval
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
@as_json
@click.pass_obj
def top(
    target: Target,
    by: str,
    depth: int,
    sort: str,
    interval_seconds: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Show who keeps the bus busy.

    Again and again, until q or Ctrl-C; a letter changes the order. Figures are of the time between
    two looks; only BACKLOG is of now. Keys are told from the stream of all messages, of which a
    very busy bus leaves some out; it says how many.
    """
    from typing import cast

    from sbus.cli.top.top import ClientSource, Sort, Source, WorkerSource
    from sbus.cli.top.top_keys import KeySource
    from sbus.cli.top.top_view import KEY_SORTS, TopPlan, run_top, run_top_as_json
    from sbus.protocol.keys import DIALECTS

    if by == "key" and sort not in KEY_SORTS:
        raise click.UsageError(
            f"of keys is not known what is {sort}; sort by {', '.join(KEY_SORTS)}"
        )
    plan = TopPlan(cast(Sort, sort), interval_seconds, count)
    separator = DIALECTS[target.options["dialect"]].separator.decode()
    with target.connect_admin() as admin:
        source: Source
        if by == "worker":
            source = WorkerSource(admin)
        elif by == "key":
            source = KeySource(admin, separator, depth)
        else:
            source = ClientSource(admin, "user" if by == "user" else "client")
        (run_top_as_json if as_json else run_top)(source, plan)


@click.command(epilog="\b\nExample:\n  sbusctl workers")
@as_json
@click.pass_obj
def workers(target: Target, as_json: bool) -> None:
    """Show the processes that serve clients.

    A worker that shows no sign of life for long is killed and replaced, a death.
    """
    from sbus.cli.sbusctl.answers import show
    from sbus.cli.views.stats_view import workers_lines
    from sbus.protocol.admin import Workers
    from sbus.protocol.admin_results import WorkersResult

    with target.connect_admin() as admin:
        show(
            admin.ask(Workers(), WorkersResult),
            as_json,
            lambda result, width: workers_lines(result.workers, width),
        )


@click.command(epilog="\b\nExample:\n  sbusctl version")
@as_json
@click.pass_obj
def version(target: Target, as_json: bool) -> None:
    """Show which bus is running.

    Its version may be another than this program's, which is that of `sbusctl --version`.
    """
    from sbus.cli.sbusctl.answers import show
    from sbus.cli.views.stats_view import version_lines
    from sbus.protocol.admin import Version
    from sbus.protocol.admin_results import VersionResult

    with target.connect_admin() as admin:
        show(admin.ask(Version(), VersionResult), as_json, version_lines)

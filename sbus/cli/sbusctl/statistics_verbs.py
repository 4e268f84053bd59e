"""The verbs of `sbusctl` that show figures of the bus: stats, top, workers, version."""

import click

from sbus.cli.sbusctl.shared_options import SelectedBus, interval_option, json_option, verb


@verb(
    "sbusctl stats",
    "sbusctl stats --watch --interval 1",
    "sbusctl stats --json | jq .traffic.discarded",
)
@click.option("--watch", is_flag=True, help="Update until Ctrl-C.")
@interval_option
@json_option
def stats(selected: SelectedBus, watch: bool, interval_seconds: float, as_json: bool) -> None:
    """Show the traffic of the bus.

    Totals, rates, losses, use of shared memory, and each worker. Every message that is accepted for
    a recipient is delivered, discarded, undelivered because the recipient left, or still in its
    backlog.
    """
    from sbus.cli.sbusctl.admin_requests import ask_and_show, ask_and_show_again
    from sbus.protocol.admin import Stats

    with selected.connect_admin() as admin:
        if watch:
            ask_and_show_again(admin, Stats(), interval_seconds, as_json=as_json)
        else:
            ask_and_show(admin, Stats(), as_json=as_json)


@verb(
    "sbusctl top",
    "sbusctl top --by user --sort backlog",
    "sbusctl top --by key --depth 2",
    "sbusctl top --by worker --count 1 --json | jq '.rows[] | .cpu_percent'",
)
@click.option(
    "--by",
    type=click.Choice(["client", "user", "key", "worker"]),
    default="client",
    show_default=True,
    help="What to compare; keys are grouped by their first segments.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, 128),
    default=1,
    show_default=True,
    help="Number of segments by which keys are grouped.",
)
@click.option(
    "--sort",
    type=click.Choice(["in", "bytes", "out", "lost", "backlog"]),
    default="in",
    show_default=True,
    help="Order: by messages or bytes published, or by messages delivered, lost or in the backlog.",
)
@interval_option
@click.option("--count", type=click.IntRange(min=1), help="End after this many updates.")
@json_option
def top(
    selected: SelectedBus,
    by: str,
    depth: int,
    sort: str,
    interval_seconds: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Show the busiest clients, users, keys or workers.

    Updates until q or Ctrl-C; a letter changes the order. Figures are rates since the update
    before, except for BACKLOG, which is that of now. Keys are counted from the stream of all
    messages; on a very busy bus some are missed, and top shows how many.
    """
    from typing import cast

    from sbus.cli.top.interactive import TopPlan, run_top
    from sbus.cli.top.loads import Sort
    from sbus.cli.top.sources import ClientSource, KeySource, Source, WorkerSource
    from sbus.cli.top.top_view import KEY_SORTS
    from sbus.protocol.keys import DIALECTS

    if by == "key" and sort not in KEY_SORTS:
        raise click.UsageError(f"keys cannot be sorted by {sort}; sort by {', '.join(KEY_SORTS)}")
    separator = DIALECTS[selected.link["dialect"]].separator.decode()
    with selected.connect_admin() as admin:
        source: Source
        if by == "worker":
            source = WorkerSource(admin)
        elif by == "key":
            source = KeySource(admin, separator, depth)
        else:
            source = ClientSource(admin, "user" if by == "user" else "client")
        run_top(source, TopPlan(cast(Sort, sort), interval_seconds, count), as_json=as_json)


@verb("sbusctl workers")
@json_option
def workers(selected: SelectedBus, as_json: bool) -> None:
    """Show the processes that serve clients.

    A worker without a heartbeat for long is killed and replaced, which counts as a death.
    """
    from sbus.protocol.admin import Workers

    selected.ask_and_show(Workers(), as_json=as_json)


@verb("sbusctl version")
@json_option
def version(selected: SelectedBus, as_json: bool) -> None:
    """Show the version and settings of the running bus.

    The version may differ from that of this program, which `sbusctl --version` shows. Only an
    administrator sees the settings.
    """
    from sbus.cli.terminal.standard_output import write_json, write_line
    from sbus.client.admin import AdminError
    from sbus.errors import AddressError
    from sbus.protocol.admin import Version

    try:
        selected.ask_and_show(Version(), as_json=as_json)
    except (AddressError, AdminError) as error:
        is_fault = isinstance(error, AdminError) and error.code != "not-allowed"
        if is_fault or selected.admin_address is not None:
            raise
        running = selected.me().version
        if as_json:
            write_json({"version": running})
        else:
            write_line(f"sbusd  {running}")

"""The common part of the administrator's verbs: a request, and its result for people or as JSON."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from rich.text import Text

from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.screen import Screen
from sbus.cli.terminal.standard_output import write_json
from sbus.cli.terminal.units import enumerated
from sbus.cli.views import bus_view, clients_view, users_view
from sbus.cli.views.paging import ask_all_pages
from sbus.client.admin import AdminConnection
from sbus.errors import Disconnected
from sbus.protocol import admin as protocol

R = TypeVar("R", bound=msgspec.Struct)
Lines = Callable[[R, int | None], list[Text]]
"""Makes lines of a result, for a terminal's width or for a program."""

LINES: dict[type[msgspec.Struct], Lines[Any]] = {
    protocol.Clients: clients_view.clients_lines,
    protocol.Drain: bus_view.drain_lines,
    protocol.Explain: clients_view.explain_lines,
    protocol.Kick: clients_view.kick_lines,
    protocol.Move: clients_view.move_lines,
    protocol.Limit: users_view.limit_lines,
    protocol.Reload: bus_view.reload_lines,
    protocol.Stats: bus_view.stats_lines,
    protocol.Subs: clients_view.subscriptions_lines,
    protocol.Upgrade: bus_view.upgrade_lines,
    protocol.Users: users_view.users_lines,
    protocol.Version: bus_view.version_lines,
    protocol.Workers: lambda result, width: bus_view.workers_lines(result.workers, width),
}
"""How the result of each request is shown."""


def ask_and_show(admin: AdminConnection, request: protocol.Request, *, as_json: bool) -> None:
    """Ask, and print the result."""
    kind = type(request)
    show(ask_all_pages(admin, request, protocol.RESULTS[kind]), LINES[kind], as_json=as_json)


def ask_and_show_again(
    admin: AdminConnection, request: protocol.Request, interval_seconds: float, *, as_json: bool
) -> None:
    """Ask and print once in each interval; on a terminal, in place of the result before."""
    if as_json:
        for result in _answers(admin, request, interval_seconds):
            write_json(result)
        return
    screen = Screen()
    with screen.repainting(whole=False) as show_lines:
        for result in _answers(admin, request, interval_seconds):
            show_lines(LINES[type(request)](result, screen.width))


def _answers(
    admin: AdminConnection, request: protocol.Request, interval_seconds: float
) -> Iterator[msgspec.Struct]:
    while True:
        yield admin.ask(request, protocol.RESULTS[type(request)])
        time.sleep(interval_seconds)


def show(result: R, lines: Lines[R], *, as_json: bool) -> None:
    """Print a result, and a warning if workers are missing in it."""
    if as_json:
        write_json(result)
    else:
        screen = Screen()
        screen.show(lines(result, screen.width))
    warn_of_unanswered(getattr(result, "unanswered", ()))


def warn_of_unanswered(workers: Iterable[int]) -> None:
    """Report workers that did not answer in time."""
    numbers = sorted(workers)
    if numbers:
        which = f"worker{'s' if len(numbers) > 1 else ''} {enumerated(numbers)}"
        report_error(f"{which} did not answer in time: something is missing", command="sbusctl")


def wait_for_end(admin: AdminConnection) -> None:
    """Return when the bus has ended, or has closed the connection."""
    try:
        while True:
            admin.receive(None)
    except Disconnected:
        return

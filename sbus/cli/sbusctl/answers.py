"""Answers of the admin socket, as a verb needs them: whole lists, and shown in one of two forms.

This module knows the pages of lists, and that a worker may not have answered; not what an answer
means, nor how it is laid out for people.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec
from rich.text import Text

from sbus.cli.terminal.error_output import report_error
from sbus.cli.terminal.exit_status import write
from sbus.cli.terminal.screen import Screen
from sbus.cli.terminal.units import enumerated
from sbus.client.admin import AdminConnection
from sbus.errors import Disconnected
from sbus.protocol.admin import PAGE_MAX, Clients, Subs, Users
from sbus.protocol.admin_results import (
    ClientReport,
    ClientsResult,
    SubscriptionReport,
    SubsResult,
    UserReport,
    UsersResult,
)

A = TypeVar("A", bound=msgspec.Struct)


def all_clients(admin: AdminConnection, uid: int | None = None) -> ClientsResult:
    """The clients, of one user if `uid` is given, of all pages together."""
    clients: list[ClientReport] = []
    unanswered: set[int] = set()
    after: int | None = 0
    while after is not None:
        page = admin.ask(Clients(uid=uid, after=after, limit=PAGE_MAX), ClientsResult)
        clients += page.clients
        unanswered.update(page.unanswered)
        after = page.next
    return ClientsResult(clients=clients, next=None, unanswered=sorted(unanswered))


def all_subscriptions(admin: AdminConnection, pattern: str) -> SubsResult:
    """The subscriptions that have keys in common with `pattern`, of all pages together."""
    subscriptions: list[SubscriptionReport] = []
    unanswered: set[int] = set()
    after: str | None = None
    while True:
        request = Subs(pattern=pattern, after=after, limit=PAGE_MAX)
        page = admin.ask(request, SubsResult)
        subscriptions += page.subscriptions
        unanswered.update(page.unanswered)
        after = page.next
        if after is None:
            return SubsResult(subscriptions=subscriptions, next=None, unanswered=sorted(unanswered))


def all_users(admin: AdminConnection) -> UsersResult:
    """The users, of all pages together."""
    users: list[UserReport] = []
    after: int | None = -1
    while after is not None:
        page = admin.ask(Users(after=after, limit=PAGE_MAX), UsersResult)
        users += page.users
        after = page.next
    return UsersResult(users=users, next=None)


def wait_for_end(admin: AdminConnection) -> None:
    """Return when the bus has ended, or hung up on us."""
    try:
        while True:
            admin.receive(None)
    except Disconnected:
        return


# -- showing ---------------------------------------------------------------------------------------
def show(answer: A, as_json: bool, lines: Callable[[A, int | None], list[Text]]) -> None:
    """Print one answer: as it came, or the `lines` that it makes for a width."""
    if as_json:
        write_json(answer)
        return
    screen = Screen()
    screen.show(lines(answer, screen.width))


def show_each(
    answers: Iterable[A], as_json: bool, lines: Callable[[A, int | None], list[Text]]
) -> None:
    """Print each answer when it comes; on a terminal in place of the one before."""
    if as_json:
        for answer in answers:
            write_json(answer)
        return
    screen = Screen()
    with screen.repainting(whole=False) as view:
        for answer in answers:
            view.show(lines(answer, screen.width))


def again_and_again(ask: Callable[[], A], interval_seconds: float) -> Iterator[A]:
    """The answer now, and then once in each interval."""
    while True:
        yield ask()
        time.sleep(interval_seconds)


def write_json(answer: msgspec.Struct) -> None:
    """Print an answer as it came: one line, in ASCII, so safe on a terminal as well."""
    write(json.dumps(msgspec.to_builtins(answer)).encode() + b"\n")


def warn_of_unanswered(workers: Iterable[int]) -> None:
    """Say so when something is missing because workers did not answer in time."""
    numbers = sorted(workers)
    if numbers:
        which = f"worker{'s' if len(numbers) > 1 else ''} {enumerated(numbers)}"
        report_error(f"{which} did not answer in time: something is missing", command="sbusctl")

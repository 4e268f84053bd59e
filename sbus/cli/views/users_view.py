"""What `users`, `limit` and `me` show to people: what a user has, and may have.

Lines out of answers, for a width; prints nothing and asks nobody but the host's user database.
"""

from collections.abc import Callable

from rich.text import Text

from sbus.cli.terminal.tables import Cell, Column, fit, layout, paragraph, text
from sbus.cli.terminal.units import count, counted, duration, size
from sbus.cli.terminal.user_names import user_name
from sbus.cli.views.clients_view import clients_lines, subscriptions_lines
from sbus.limits import UserLimits
from sbus.protocol.admin_results import (
    ClientsResult,
    LimitResult,
    MeResult,
    SubsResult,
    UserReport,
    UsersResult,
)

NEAR, FULL = 0.8, 1.0
"""Parts of a limit from which on it stands out."""
_NEAR_STYLE, _FULL_STYLE = "yellow", "red"


def users_lines(result: UsersResult, width: int | None) -> list[Text]:
    """One line for each user: what it has, behind the `/` what it may have."""
    columns = [
        Column("USER", right=False, flexible=True),
        Column("CLIENTS"),
        Column("SUBS"),
        Column("SUB-BYTES", rank=3),
        Column("BACKLOG"),
        Column("WAITING", rank=1),
        Column("BLOCKING", rank=4),
        Column("HELD"),
        Column("MAX-IN/S", rank=2),
        Column("LOST"),
    ]
    return layout(columns, [_user(user) for user in result.users], width)


def _user(user: UserReport) -> list[str | Cell]:
    limits = user.limits
    return [
        user_name(user.uid),
        _used(user.connections, limits.connections_max, count),
        _used(user.subscriptions, limits.subscriptions_max, count),
        _used(user.subscription_bytes, limits.subscription_bytes_max, size),
        _used(user.backlog_bytes, limits.backlog_bytes_max, size),
        size(user.waiting_bytes),
        count(user.blocking_clients),
        _used(user.held_seconds, limits.held_seconds_max, duration),
        count(limits.messages_per_second_max),
        Cell(count(user.discarded), _NEAR_STYLE if user.discarded else ""),
    ]


def _used(has: float, may: float, shown: Callable[[float], str]) -> Cell:
    return Cell(f"{shown(has)}/{shown(may)}", _style(has, may))


def _style(has: float, may: float) -> str:
    if has < NEAR * may or not has:
        return ""
    return _FULL_STYLE if has >= FULL * may else _NEAR_STYLE


# -- limit -----------------------------------------------------------------------------------------
def limit_lines(result: LimitResult, width: int | None) -> list[Text]:
    """Every limit of the user, exactly; where something changed, what it was before as well."""
    changed = result.before != result.after
    columns = [
        Column("LIMIT", right=False),
        *([Column("BEFORE")] if changed else []),
        Column("NOW"),
    ]
    rows: list[list[str | Cell]] = []
    for name in UserLimits.__struct_fields__:
        before, after = getattr(result.before, name), getattr(result.after, name)
        now = Cell(f"{after:.15g}", "bold" if before != after else "")
        rows.append([name, *([f"{before:.15g}"] if changed else []), now])
    title = fit(text(f"{user_name(result.uid)} ({result.uid})", "bold"), width)
    return [title, *layout(columns, rows, width)]


# -- me --------------------------------------------------------------------------------------------
def me_lines(result: MeResult, width: int | None) -> list[Text]:
    """What one has and may have, one's clients and subscriptions."""
    user, limits = result.user, result.user.limits
    uses = [
        ("connections", user.connections, limits.connections_max, count),
        ("subscriptions", user.subscriptions, limits.subscriptions_max, count),
        ("subscription-bytes", user.subscription_bytes, limits.subscription_bytes_max, size),
        ("backlog", user.backlog_bytes, limits.backlog_bytes_max, size),
        ("held-others", user.held_seconds, limits.held_seconds_max, duration),
    ]
    columns = [Column(user_name(user.uid), right=False), Column("USED"), Column("LIMIT")]
    rows: list[list[str | Cell]] = [
        [name, Cell(shown(has), _style(has, may)), shown(may)] for name, has, may, shown in uses
    ]
    rows.append(["messages/s", "", count(limits.messages_per_second_max)])
    rows.append(["lost", Cell(count(user.discarded), _NEAR_STYLE if user.discarded else ""), ""])
    lines = layout(columns, rows, width)
    clients = ClientsResult(clients=result.clients, next=None, unanswered=[])
    lines += [Text(), *clients_lines(clients, width)]
    lines += _more(user.connections - len(result.clients), "client", width)
    if result.subscriptions:
        some = SubsResult(subscriptions=result.subscriptions, next=None, unanswered=[])
        lines += [Text(), *subscriptions_lines(some, width)]
        shown_number = sum(one.count for one in result.subscriptions)
        lines += _more(user.subscriptions - shown_number, "subscription", width)
    return lines


def _more(number: int, noun: str, width: int | None) -> list[Text]:
    return paragraph(f"... and {counted(number, noun)} more", width) if number > 0 else []

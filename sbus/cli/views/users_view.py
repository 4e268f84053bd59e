"""The output of `users`, `limit` and `me` for people: a user's use of the bus, and its limits."""

from collections.abc import Callable, Sequence

from rich.text import Text

from sbus.cli.terminal.tables import (
    Cell,
    Column,
    Field,
    fit,
    layout,
    name_field,
    paragraph,
    table,
    text,
)
from sbus.cli.terminal.units import count, counted, duration, size
from sbus.cli.terminal.user_names import user_name
from sbus.cli.views.clients_view import clients_lines, subscriptions_lines, warned
from sbus.limits import UserLimits
from sbus.protocol import admin_results as results

NEAR, FULL = 0.8, 1.0
"""The parts of a limit from which on a figure stands out."""
_NEAR_STYLE, _FULL_STYLE = "yellow", "red"
_LIMITED: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "CLIENTS": ("connections", "connections", count),
    "SUBS": ("subscriptions", "subscriptions", count),
    "SUB-BYTES": ("subscription-bytes", "subscription_bytes", size),
    "STEPS": ("match-steps", "match_steps", count),
    "BACKLOG": ("backlog", "backlog_bytes", size),
    "HELD": ("held-others", "held_seconds", duration),
}
"""By title in `users`: the name in `me`, the field, whose limit is FIELD_max, and its unit."""


def users_lines(result: results.UsersResult, width: int | None) -> list[Text]:
    """One line for each user: what it uses, and its limits after the `/`."""
    return table(_USER, result.users, width)


def _used(title: str) -> Callable[[results.UserReport], Cell]:
    _, field, shown = _LIMITED[title]

    def cell(user: results.UserReport) -> Cell:
        used, limit = getattr(user, field), getattr(user.limits, f"{field}_max")
        return Cell(f"{shown(used)}/{shown(limit)}", _style(used, limit))

    return cell


def _style(used: float, limit: float) -> str:
    if used < NEAR * limit or not used:
        return ""
    return _FULL_STYLE if used >= FULL * limit else _NEAR_STYLE


_USER: Sequence[Field[results.UserReport]] = (
    name_field("USER", lambda user: user_name(user.uid)),
    Field("CLIENTS", _used("CLIENTS")),
    Field("SUBS", _used("SUBS")),
    Field("SUB-BYTES", _used("SUB-BYTES"), rank=3),
    Field("STEPS", _used("STEPS"), rank=3),
    Field("BACKLOG", _used("BACKLOG")),
    Field("SOCKETS", lambda user: size(user.socket_bytes), rank=5),
    Field("WAITING", lambda user: size(user.waiting_bytes), rank=1),
    Field("BLOCKING", lambda user: count(user.blocking_clients), rank=4),
    Field("HELD", _used("HELD")),
    Field("MAX-IN/S", lambda user: count(user.limits.messages_per_second_max), rank=2),
    Field("LOST", lambda user: warned(user.discarded)),
)


# -- limit -----------------------------------------------------------------------------------------
def limit_lines(result: results.LimitResult, width: int | None) -> list[Text]:
    """Every limit of the user, exactly; if any changed, the values before as well."""
    before: Field[str] = Field("BEFORE", lambda name: _exact(result.before, name))
    fields: list[Field[str]] = [
        Field("LIMIT", lambda name: name, right=False),
        *([before] if result.before != result.after else []),
        Field(
            "NOW",
            lambda name: Cell(
                _exact(result.after, name),
                "bold" if getattr(result.before, name) != getattr(result.after, name) else "",
            ),
        ),
    ]
    title = fit(text(f"{user_name(result.uid)} ({result.uid})", "bold"), width)
    return [title, *table(fields, UserLimits.__struct_fields__, width)]


def _exact(limits: UserLimits, name: str) -> str:
    return f"{getattr(limits, name):.15g}"


# -- me --------------------------------------------------------------------------------------------
def me_lines(result: results.MeResult, width: int | None) -> list[Text]:
    """The user's use and limits, and some of its clients and subscriptions."""
    user, limits = result.user, result.user.limits
    rows: list[list[str | Cell]] = []
    for name, field, shown in _LIMITED.values():
        used, limit = getattr(user, field), getattr(limits, f"{field}_max")
        rows.append([name, Cell(shown(used), _style(used, limit)), shown(limit)])
    rows.append(["messages/s", "", count(limits.messages_per_second_max)])
    rows.append(["lost", warned(user.discarded), ""])
    columns = [Column(user_name(user.uid), right=False), Column("USED"), Column("LIMIT")]
    lines = layout(columns, rows, width)
    clients = results.ClientsResult(clients=result.clients, next=None, unanswered=[])
    lines += [Text(), *clients_lines(clients, width)]
    lines += _more(user.connections - len(result.clients), "client", width)
    if result.subscriptions:
        some = results.SubsResult(subscriptions=result.subscriptions, next=None, unanswered=[])
        lines += [Text(), *subscriptions_lines(some, width)]
        shown_number = sum(one.count for one in result.subscriptions)
        lines += _more(user.subscriptions - shown_number, "subscription", width)
    return lines


def _more(number: int, noun: str, width: int | None) -> list[Text]:
    return paragraph(f"... and {counted(number, noun)} more", width) if number > 0 else []

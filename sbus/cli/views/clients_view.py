"""The output of `clients`, `kick`, `move`, `subs` and `explain` for people."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from sbus.cli.terminal.tables import Cell, Field, fit, name_field, paragraph, table, text
from sbus.cli.terminal.units import UNKNOWN, count, counted, duration, enumerated, size
from sbus.cli.terminal.user_names import user_name
from sbus.protocol import admin_results as results

STALLED = "stalled"
DENIED = "not-allowed"
_WAITS = {"": "ok", "room": "waits", "rate": "paced", "stall": "held"}
"""Why a client is not read, in a word."""
_STALLED_STYLE, _WARNING = "red", "yellow"


# -- clients ---------------------------------------------------------------------------------------
def clients_lines(result: results.ClientsResult, width: int | None) -> list[Text]:
    """One line for each client."""
    return table(_CLIENT, result.clients, width)


def _activity(
    shown: Callable[[results.Activity], str | Cell],
) -> Callable[[results.ClientReport], str | Cell]:
    """A cell for what a client does, if that is known."""
    return lambda client: UNKNOWN if client.activity is None else shown(client.activity)


def warned(number: float) -> Cell:
    """A count that stands out unless it is zero."""
    return Cell(count(number), _WARNING if number else "")


def _policy(activity: results.Activity) -> str:
    chosen = [activity.soft, activity.hard, activity.order]
    if activity.age_ms_max:
        chosen.append(duration(activity.age_ms_max / 1000))
    return "/".join(chosen)


def client_state(activity: results.Activity | None) -> Cell:
    """The client's state in a word."""
    if activity is None:
        return Cell("unknown", _WARNING)
    if activity.stalled:
        return Cell(STALLED, _STALLED_STYLE)
    return Cell(_WAITS[activity.waits_for], _WARNING if activity.waits_for else "")


_CLIENT: Sequence[Field[results.ClientReport]] = (
    Field("CLIENT", lambda client: str(client.client)),
    name_field("USER", lambda client: user_name(client.uid)),
    Field("GID", lambda client: str(client.gid), rank=8),
    Field("PID", lambda client: str(client.pid)),
    Field("WORKER", lambda client: str(client.worker), rank=4),
    Field("AGE", lambda client: duration(max(0, time.time() - client.connected_at)), rank=2),
    Field("SUBS", _activity(lambda activity: count(activity.subscriptions)), rank=1),
    Field("IN", _activity(lambda activity: count(activity.messages_in))),
    Field("BYTES-IN", _activity(lambda activity: size(activity.bytes_in)), rank=6),
    Field("OUT", _activity(lambda activity: count(activity.delivered))),
    Field("BYTES-OUT", _activity(lambda activity: size(activity.delivered_bytes)), rank=7),
    Field("LOST", _activity(lambda activity: warned(activity.discarded))),
    Field("BACKLOG", _activity(lambda activity: warned(activity.backlog))),
    Field("BYTES", _activity(lambda activity: size(activity.backlog_bytes)), rank=5),
    Field("UNREAD", _activity(lambda activity: size(activity.socket_bytes)), rank=10),
    Field("REFUSED", _activity(lambda activity: count(activity.refused)), rank=3),
    Field(
        "POLICY",
        _activity(_policy),
        right=False,
        rank=9,
    ),
    Field("STATE", lambda client: client_state(client.activity), right=False),
    name_field("PROGRAM", lambda client: client.program),
)


def move_lines(result: results.MoveResult, width: int | None) -> list[Text]:
    """Where a client is served now."""
    where = f"client {result.client} is served by worker {result.worker}"
    return paragraph(f"{where}: {result.why_not}" if result.why_not else where, width)


def kick_lines(result: results.KickResult, width: int | None) -> list[Text]:
    """Who was disconnected."""
    program = result.program or "a program that ended"
    who = f"{user_name(result.uid)}, pid {result.pid}, {program}"
    return paragraph(f"client {result.client} is disconnected: {who}", width)


# -- subs ------------------------------------------------------------------------------------------
def subscriptions_lines(result: results.SubsResult, width: int | None) -> list[Text]:
    """One line for each pattern of a client."""
    return table(_SUBSCRIPTION, result.subscriptions, width)


def shown_pattern(pattern: str) -> str:
    """The pattern; the empty one is `''`, as in a shell."""
    return pattern or "''"


CLIENT_IDENTITY: Sequence[Field[Any]] = (
    Field("CLIENT", lambda one: str(one.client)),
    name_field("USER", lambda one: user_name(one.uid)),
    Field("PID", lambda one: str(one.pid)),
    Field("WORKER", lambda one: str(one.worker), rank=2),
    name_field("PROGRAM", lambda one: one.program),
)
"""Of a client with a subscription, as a recipient, or in `top`."""
_SUBSCRIPTION: Sequence[Field[results.SubscriptionReport]] = (
    *CLIENT_IDENTITY,
    Field("TIMES", lambda one: count(one.count), rank=1),
    name_field("PATTERN", lambda one: shown_pattern(one.pattern)),
)


# -- explain ---------------------------------------------------------------------------------------
def explain_lines(result: results.ExplainResult, width: int | None) -> list[Text]:
    """Sentences, the clients that would receive the message, and those that would not and why."""
    lines = [fit(text(shown_pattern(result.key), "bold"), width)]
    for sentence in _sentences(result):
        lines += paragraph(sentence, width)
    if result.recipients:
        lines += [Text(), *table(_RECIPIENT, result.recipients, width)]
        lines += _more(result.recipients_count - len(result.recipients), width)
    if result.excluded:
        would_not = counted(result.excluded_count, "client")
        would_not += " with a pattern that matches would not receive it:"
        lines += [Text(), *paragraph(would_not, width), *table(_EXCLUDED, result.excluded, width)]
        lines += _more(result.excluded_count - len(result.excluded), width)
        lines.append(Text())
        for reason in _reasons(result.excluded):
            lines += paragraph(reason, width)
    return lines


def _sentences(result: results.ExplainResult) -> list[str]:
    if not result.recipients_count:
        sentences = ["Nobody would receive a message under this key now."]
    else:
        would = counted(result.recipients_count, "client")
        noun = "worker" if len(result.workers) == 1 else "workers"
        sentences = [
            f"{would} would receive a message under this key now, "
            f"on {noun} {enumerated(result.workers)}."
        ]
    if result.secret:
        sentences.append("The key is secret: it names who may receive the message.")
    if result.stalled_count:
        have = "has" if result.stalled_count == 1 else "have"
        sentences.append(
            f"{count(result.stalled_count)} of them {have} no room: publishers may be held back."
        )
    return sentences


_PATTERNS: Field[results.Recipient] = name_field(
    "PATTERNS",
    lambda one: " ".join(shown_pattern(pattern).replace(" ", "\\x20") for pattern in one.patterns),
)
_RECIPIENT: Sequence[Field[results.Recipient]] = (
    *CLIENT_IDENTITY,
    Field("BACKLOG", lambda one: warned(one.backlog)),
    Field("STATE", lambda one: Cell(STALLED, _STALLED_STYLE) if one.stalled else "ok", right=False),
    _PATTERNS,
)
_EXCLUDED: Sequence[Field[results.Recipient]] = (
    *CLIENT_IDENTITY,
    Field("WHY", lambda one: Cell(one.why_not, _WARNING), right=False),
    _PATTERNS,
)


def _reasons(excluded: list[results.Recipient]) -> list[str]:
    """Each reason once."""
    return list(dict.fromkeys(f"{one.why_not}: {_reason(one)}" for one in excluded))


def _reason(one: results.Recipient) -> str:
    return f"{one.text} of the configuration denies it" if one.why_not == DENIED else one.text


def _more(number: int, width: int | None) -> list[Text]:
    return paragraph(f"... and {count(number)} more", width) if number else []

"""What `clients`, `kick`, `subs` and `explain` print for people."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.text import Text

from sbus.cli.terminal.tables import Cell, Column, Field, fit, name_column, paragraph, table, text
from sbus.cli.terminal.units import UNKNOWN, count, counted, duration, enumerated, size
from sbus.cli.terminal.user_names import user_name
from sbus.protocol.admin_results import (
    Activity,
    ClientReport,
    ClientsResult,
    ExplainResult,
    KickResult,
    Recipient,
    SubscriptionReport,
    SubsResult,
)

STALLED = "stalled"
DENIED = "not-allowed"
_WAITS = {"": "ok", "room": "waits", "rate": "paced", "stall": "held"}
"""Why a client is not read, in a word."""
_STALLED_STYLE, _WARNING = "red", "yellow"


# -- clients ---------------------------------------------------------------------------------------
def clients_lines(result: ClientsResult, width: int | None) -> list[Text]:
    """One line for each client."""
    return table(_CLIENT, result.clients, width)


def _activity(shown: Callable[[Activity], str | Cell]) -> Callable[[ClientReport], str | Cell]:
    """A cell for what a client does, if that is known."""
    return lambda client: UNKNOWN if client.activity is None else shown(client.activity)


def _warned(number: int) -> Cell:
    return Cell(count(number), _WARNING if number else "")


def client_state(activity: Activity | None) -> Cell:
    """The client's state in a word."""
    if activity is None:
        return Cell("unknown", _WARNING)
    if activity.stalled:
        return Cell(STALLED, _STALLED_STYLE)
    return Cell(_WAITS[activity.waits_for], _WARNING if activity.waits_for else "")


_CLIENT: Sequence[Field[ClientReport]] = (
    Field(Column("CLIENT"), lambda client: str(client.client)),
    Field(name_column("USER"), lambda client: user_name(client.uid)),
    Field(Column("GID", rank=8), lambda client: str(client.gid)),
    Field(Column("PID"), lambda client: str(client.pid)),
    Field(Column("WORKER", rank=4), lambda client: str(client.worker)),
    Field(
        Column("AGE", rank=2), lambda client: duration(max(0, time.time() - client.connected_at))
    ),
    Field(Column("SUBS", rank=1), _activity(lambda activity: count(activity.subscriptions))),
    Field(Column("IN"), _activity(lambda activity: count(activity.messages_in))),
    Field(Column("BYTES-IN", rank=6), _activity(lambda activity: size(activity.bytes_in))),
    Field(Column("OUT"), _activity(lambda activity: count(activity.delivered))),
    Field(Column("BYTES-OUT", rank=7), _activity(lambda activity: size(activity.delivered_bytes))),
    Field(Column("LOST"), _activity(lambda activity: _warned(activity.discarded))),
    Field(Column("BACKLOG"), _activity(lambda activity: _warned(activity.backlog))),
    Field(Column("BYTES", rank=5), _activity(lambda activity: size(activity.backlog_bytes))),
    Field(Column("REFUSED", rank=3), _activity(lambda activity: count(activity.refused))),
    Field(
        Column("POLICY", right=False, rank=9),
        _activity(lambda activity: f"{activity.soft}/{activity.hard}/{activity.order}"),
    ),
    Field(Column("STATE", right=False), lambda client: client_state(client.activity)),
    Field(name_column("PROGRAM"), lambda client: client.program),
)


def kick_lines(result: KickResult, width: int | None) -> list[Text]:
    """Who was disconnected."""
    program = result.program or "a program that ended"
    who = f"{user_name(result.uid)}, pid {result.pid}, {program}"
    return paragraph(f"client {result.client} is disconnected: {who}", width)


# -- subs ------------------------------------------------------------------------------------------
def subscriptions_lines(result: SubsResult, width: int | None) -> list[Text]:
    """One line for each pattern of a client."""
    return table(_SUBSCRIPTION, result.subscriptions, width)


def shown_pattern(pattern: str) -> str:
    """The pattern; the empty one is `''`, as in a shell."""
    return pattern or "''"


_IDENTITY: Sequence[Field[Any]] = (
    Field(Column("CLIENT"), lambda one: str(one.client)),
    Field(name_column("USER"), lambda one: user_name(one.uid)),
    Field(Column("PID"), lambda one: str(one.pid)),
    Field(Column("WORKER", rank=2), lambda one: str(one.worker)),
    Field(name_column("PROGRAM"), lambda one: one.program),
)
"""Of a client with a subscription or as a recipient."""
_SUBSCRIPTION: Sequence[Field[SubscriptionReport]] = (
    *_IDENTITY,
    Field(Column("TIMES", rank=1), lambda one: count(one.count)),
    Field(name_column("PATTERN"), lambda one: shown_pattern(one.pattern)),
)


# -- explain ---------------------------------------------------------------------------------------
def explain_lines(result: ExplainResult, width: int | None) -> list[Text]:
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


def _sentences(result: ExplainResult) -> list[str]:
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


_PATTERNS: Field[Recipient] = Field(
    name_column("PATTERNS"),
    lambda one: " ".join(shown_pattern(pattern).replace(" ", "\\x20") for pattern in one.patterns),
)
_RECIPIENT: Sequence[Field[Recipient]] = (
    *_IDENTITY,
    Field(Column("BACKLOG"), lambda one: _warned(one.backlog)),
    Field(
        Column("STATE", right=False),
        lambda one: Cell(STALLED, _STALLED_STYLE) if one.stalled else "ok",
    ),
    _PATTERNS,
)
_EXCLUDED: Sequence[Field[Recipient]] = (
    *_IDENTITY,
    Field(Column("WHY", right=False), lambda one: Cell(one.why_not, _WARNING)),
    _PATTERNS,
)


def _reasons(excluded: list[Recipient]) -> list[str]:
    """Each reason once."""
    return list(dict.fromkeys(f"{one.why_not}: {_reason(one)}" for one in excluded))


def _reason(one: Recipient) -> str:
    return f"{one.text} of the configuration denies it" if one.why_not == DENIED else one.text


def _more(number: int, width: int | None) -> list[Text]:
    return paragraph(f"... and {count(number)} more", width) if number else []

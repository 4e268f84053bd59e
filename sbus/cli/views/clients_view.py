"""What `clients`, `subs` and `explain` show to people: who is there, and who gets what.

Lines out of answers, for a width; prints nothing and asks nobody but the host's user database.
"""

import time

from rich.text import Text

from sbus.cli.terminal.tables import Cell, Column, fit, layout, paragraph, text
from sbus.cli.terminal.units import UNKNOWN, count, counted, duration, enumerated, size
from sbus.cli.terminal.user_names import user_name
from sbus.protocol.admin_results import (
    Activity,
    ClientReport,
    ClientsResult,
    ExplainResult,
    Recipient,
    SubscriptionReport,
    SubsResult,
)

STALLED = "stalled"
DENIED = "not-allowed"
_WAITS = {"": "ok", "room": "waits", "rate": "paced", "stall": "held"}
"""What keeps a client from being read, in a word."""
_STALLED_STYLE, _WARNING = "red", "yellow"


# -- clients ---------------------------------------------------------------------------------------
def clients_lines(result: ClientsResult, width: int | None) -> list[Text]:
    """One line for each client."""
    now = time.time()
    columns = [
        Column("CLIENT"),
        Column("USER", right=False, flexible=True),
        Column("GID", rank=8),
        Column("PID"),
        Column("WORKER", rank=4),
        Column("AGE", rank=2),
        Column("SUBS", rank=1),
        Column("IN"),
        Column("BYTES-IN", rank=6),
        Column("OUT"),
        Column("BYTES-OUT", rank=7),
        Column("LOST"),
        Column("BACKLOG"),
        Column("BYTES", rank=5),
        Column("REFUSED", rank=3),
        Column("POLICY", right=False, rank=9),
        Column("STATE", right=False),
        Column("PROGRAM", right=False, flexible=True),
    ]
    return layout(columns, [_client(client, now) for client in result.clients], width)


def _client(client: ClientReport, now: float) -> list[str | Cell]:
    does = client.activity
    return [
        str(client.client),
        user_name(client.uid),
        str(client.gid),
        str(client.pid),
        str(client.worker),
        duration(max(0.0, now - client.connected_at)),
        *(_counters(does) if does else [UNKNOWN] * 9),
        f"{does.soft}/{does.hard}/{does.order}" if does else UNKNOWN,
        client_state(does),
        client.program,
    ]


def _counters(does: Activity) -> list[str | Cell]:
    return [
        count(does.subscriptions),
        count(does.messages_in),
        size(does.bytes_in),
        count(does.delivered),
        size(does.delivered_bytes),
        Cell(count(does.discarded), _WARNING if does.discarded else ""),
        Cell(count(does.backlog), _WARNING if does.backlog else ""),
        size(does.backlog_bytes),
        count(does.refused),
    ]


def client_state(does: Activity | None) -> Cell:
    """How the client is, in a word."""
    if does is None:
        return Cell("unknown", _WARNING)
    if does.stalled:
        return Cell(STALLED, _STALLED_STYLE)
    return Cell(_WAITS[does.waits_for], _WARNING if does.waits_for else "")


# -- subs ------------------------------------------------------------------------------------------
def subscriptions_lines(result: SubsResult, width: int | None) -> list[Text]:
    """One line for each pattern of a client."""
    columns = [
        Column("CLIENT"),
        Column("USER", right=False, flexible=True),
        Column("PID"),
        Column("WORKER", rank=2),
        Column("PROGRAM", right=False, flexible=True),
        Column("TIMES", rank=1),
        Column("PATTERN", right=False, flexible=True),
    ]
    return layout(columns, [_subscription(one) for one in result.subscriptions], width)


def _subscription(one: SubscriptionReport) -> list[str]:
    return [
        str(one.client),
        user_name(one.uid),
        str(one.pid),
        str(one.worker),
        one.program,
        count(one.count),
        shown_pattern(one.pattern),
    ]


def shown_pattern(pattern: str) -> str:
    """The pattern; the empty one is `''`, as in a shell."""
    return pattern or "''"


# -- explain ---------------------------------------------------------------------------------------
def explain_lines(result: ExplainResult, width: int | None) -> list[Text]:
    """Sentences, who would receive the message, and who would not and why."""
    lines = [fit(text(shown_pattern(result.key), "bold"), width)]
    for sentence in _sentences(result):
        lines += paragraph(sentence, width)
    if result.recipients:
        columns = [*_RECIPIENT, Column("BACKLOG"), Column("STATE", right=False), *_PATTERNS]
        lines += [Text(), *layout(columns, list(map(_recipient, result.recipients)), width)]
        lines += _more(result.recipients_count - len(result.recipients), width)
    if result.excluded:
        would_not = counted(result.excluded_count, "client")
        would_not += " with a pattern that matches would not receive it:"
        lines += [Text(), *paragraph(would_not, width)]
        columns = [*_RECIPIENT, Column("WHY", right=False), *_PATTERNS]
        lines += layout(columns, list(map(_excluded, result.excluded)), width)
        lines += _more(result.excluded_count - len(result.excluded), width)
        lines.append(Text())
        for reason in _reasons(result.excluded):
            lines += paragraph(reason, width)
    return lines


_RECIPIENT = (
    Column("CLIENT"),
    Column("USER", right=False, flexible=True),
    Column("PID"),
    Column("WORKER", rank=1),
    Column("PROGRAM", right=False, flexible=True),
)
_PATTERNS = (Column("PATTERNS", right=False, flexible=True),)


def _sentences(result: ExplainResult) -> list[str]:
    would = counted(result.recipients_count, "client")
    if not result.recipients_count:
        sentences = ["Nobody would receive a message under this key now."]
    else:
        noun = "worker" if len(result.workers) == 1 else "workers"
        sentences = [
            f"{would} would receive a message under this key now, "
            f"on {noun} {enumerated(result.workers)}."
        ]
    if result.secret:
        sentences.append("The key is a secret one: only whom it names may receive the message.")
    if result.stalled_count:
        have = "has" if result.stalled_count == 1 else "have"
        sentences.append(
            f"{count(result.stalled_count)} of them {have} no room: publishers may be held back."
        )
    return sentences


def _identity(one: Recipient) -> list[str | Cell]:
    return [str(one.client), user_name(one.uid), str(one.pid), str(one.worker), one.program]


def _patterns(one: Recipient) -> str:
    return " ".join(shown_pattern(pattern).replace(" ", "\\x20") for pattern in one.patterns)


def _recipient(one: Recipient) -> list[str | Cell]:
    state = Cell(STALLED, _STALLED_STYLE) if one.stalled else Cell("ok")
    backlog = Cell(count(one.backlog), _WARNING if one.backlog else "")
    return [*_identity(one), backlog, state, _patterns(one)]


def _excluded(one: Recipient) -> list[str | Cell]:
    return [*_identity(one), Cell(one.why_not, _WARNING), _patterns(one)]


def _reasons(excluded: list[Recipient]) -> list[str]:
    """Each reason once, however many clients it concerns."""
    return list(dict.fromkeys(f"{one.why_not}: {_reason(one)}" for one in excluded))


def _reason(one: Recipient) -> str:
    return f"{one.text} of the configuration denies it" if one.why_not == DENIED else one.text


def _more(number: int, width: int | None) -> list[Text]:
    return paragraph(f"... and {count(number)} more", width) if number else []

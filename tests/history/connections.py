"""Why connections end, and what their clients are told: see `checks`."""

from collections.abc import Iterator

from sbus.limits import Limits
from tests.history.history import Connection, History
from tests.history.verdicts import documented_codes, judge

_LIMITS = Limits()
_SETTLING_NS = 3_000_000_000
"""A younger connection may be lost with its bus."""
_MOVING_NS = 1_000_000_000
_DEATHS_OF_CULPRITS = 3
"""After so many in a row, the client that was served is disconnected."""


def check_disconnected(history: History) -> Iterator[str]:
    unexplained_ends = []
    for one in history.connections.values():
        caused = _caused_codes(one)
        told = caused | ({"packets-lost"} if history.deaths else set())
        if history.deaths >= _DEATHS_OF_CULPRITS:
            told |= {"kills-workers"}
        for at, code in one.errors:
            if code not in told | _codes_of_events(history, one, at):
                yield f"client {one.number} was told {code} at {at}, without a reason"
        is_done = one.ended_at is None or (one.closed_at or one.ended_at + 1) < one.ended_at
        if not is_done and not _may_end(history, one, caused):
            unexplained_ends.append(one)
    # A kick of a client without notices has no code.
    for one in unexplained_ends[len(history.positions("kick")) :]:
        yield f"client {one.number} was disconnected at {one.ended_at}"


def _caused_codes(one: Connection) -> set[str]:
    codes = {judge(packet, one.dialect, _LIMITS).code for _, packet in one.sent} - {""}
    if any(packet.startswith(b"CMSG !/join") for _, packet in one.sent):
        codes |= {"name-taken", "has-name"}
    if any(choice.endswith(b"/block") for choice in one.choices):
        codes |= {"too-many-blocking"}
    return codes | ({"too-slow"} if one.may_be_ended else set())


def _codes_of_events(history: History, one: Connection, at: int) -> set[str]:
    codes = set()
    for position, ns, words in history.events:
        if position > at:
            break
        if words[0] == "kick":
            codes.add("kicked")
        elif words[0] in ("restart", "new-bus") and _is_settling(history, one, ns):
            codes |= {"stopping", "bus-failed"}
        elif words[0] == "move-begin" and _died_during_move(history, one, words, ns):
            codes.add("worker-died")
    return codes


def _may_end(history: History, one: Connection, caused: set[str]) -> bool:
    if one.may_be_ended or any(documented_codes().get(it) == "disconnected" for it in caused):
        return True
    assert one.ended_at is not None
    codes = {code for at, code in one.errors if at < one.ended_at}
    may_be_culprit = "kills-workers" in codes or one.notices_at is None
    if history.deaths >= _DEATHS_OF_CULPRITS and may_be_culprit:
        return True
    if codes & _codes_of_events(history, one, one.ended_at):
        return True
    return any(
        position < one.ended_at
        and (
            (words[0] == "new-bus" and one.opened_at < position)
            or (words[0] == "restart" and _is_settling(history, one, ns))
            or (words[0] == "move-begin" and _died_during_move(history, one, words, ns))
        )
        for position, ns, words in history.events
    )


def _is_settling(history: History, one: Connection, ns: int) -> bool:
    return abs(ns - history.times[one.opened_at]) < _SETTLING_NS


def _died_during_move(history: History, one: Connection, words: list[str], begun: int) -> bool:
    """Whether a worker died while this client, or one whose number nobody was told, was moved."""
    if one.bus_number not in (None, int(words[1])):
        return False
    ends = [
        ns
        for _, ns, other in history.events
        if other[0] == "move-end" and other[1] == words[1] and ns >= begun
    ]
    end = min(ends, default=history.times[-1])
    return history.died_between(begun - _MOVING_NS, end + _MOVING_NS)

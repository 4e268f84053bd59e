"""The states of an outbox, and what every event makes of them.

FLOWING  ⇒  nothing waits;    FULL, NO_MEMORY  ⇒  something waits
"""

import enum
from errno import EAGAIN, EMSGSIZE, ETIME
from typing import Final

from sbus.unix import errno_sets


class State(enum.Enum):
    FLOWING = "a message is sent at once"
    FULL = "no room, or no time for a send: a backlog waits for it, and is sent in turns"
    NO_MEMORY = "as FULL, but there was no memory for a packet, which is not the client's fault"
    CLOSED = "the peer takes no more: messages are counted as undelivered"
    AWAY = "another worker serves the client: messages are not for this outbox"

    __hash__ = object.__hash__


class Event(enum.Enum):
    SOCKET_FULL = "a send failed, for want of room"
    OUT_OF_MEMORY = "a send failed, for want of memory"
    OUT_OF_TIME = "sends to the client's user have taken too long"
    BACKLOG_SENT = "nothing waits any more"
    CLOSE = "the peer has gone, or is to be disconnected"
    LEAVE = "another worker serves the client from now on"
    ARRIVE = "this worker serves the client from now on"

    __hash__ = object.__hash__


FLOWING, FULL, NO_MEMORY, CLOSED, AWAY = State
SOCKET_FULL, OUT_OF_MEMORY, OUT_OF_TIME, BACKLOG_SENT, CLOSE, LEAVE, ARRIVE = Event
"""A failed send goes through the table; these names and the hash by identity spare it 0.5 us."""

_FAILED_SEND = {SOCKET_FULL: FULL, OUT_OF_MEMORY: NO_MEMORY, OUT_OF_TIME: FULL}
_WAITING = {**_FAILED_SEND, BACKLOG_SENT: FLOWING, CLOSE: CLOSED}

TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    FLOWING: {**_FAILED_SEND, CLOSE: CLOSED, LEAVE: AWAY},
    FULL: _WAITING,
    NO_MEMORY: _WAITING,
    CLOSED: {CLOSE: CLOSED},
    AWAY: {ARRIVE: FLOWING, CLOSE: CLOSED},
}
"""The next state. An event that is not in the row of a state is a bug, and a KeyError."""

EVENTS: Final[dict[int | None, Event]] = {
    **dict.fromkeys(errno_sets.SOCKET_FULL, OUT_OF_MEMORY),
    EMSGSIZE: OUT_OF_MEMORY,
    EAGAIN: SOCKET_FULL,
    ETIME: OUT_OF_TIME,
    **dict.fromkeys(errno_sets.PEER_GONE, CLOSE),
}
"""What a failed send(2) means, by its errno."""

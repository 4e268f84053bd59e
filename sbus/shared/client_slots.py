"""Client slots: what a successor needs to know of each client when its worker dies.

The front gives every client a slot, and the worker that serves the client writes it. Each word is
valid by itself, so neither needs the lock, and a death at any store leaves the value before it or
the one behind it. A slot is its client's from the moment when it has the client's number: until
then the client has chosen nothing.

    slot = client's number | settings | pending packets | waiting messages | steps
           | untold packets | unknown loss | number | cookie | connected since | short request

Pending packets are those that the worker has read and that are not done. The word is written before
each is read, and after those that are done. So a death in between adds a packet that was not read,
or those that were done in that instant, and leaves none out.

A *request* is any packet that is no message. It is the last of its batch, and its bytes are kept
until it is done and its reply is sent, for a successor to carry it out. A long one has its room
behind all slots, which takes no memory before a client sends one. The word of the pending packets
says all about it, so one store keeps it, and one forgets it:

    bytes of the request (32 bits) | reply under way | has begun | number of pending packets

    has begun        its step gets its place, or has it if the worker's STEP_REQUEST is its mark
    reply under way  a death leaves open whether the client gets it

Waiting messages are those in the client's backlog, and those that were dropped and that it was not
told of. The word is written whenever that has changed.

Untold packets were lost with a predecessor, and an unknown loss is one of messages that nobody has
counted. Both words are zero once the client was told.

The front writes the second number, the cookie of the client's socket and the time of its admission,
for the front of a bus that goes on when all processes of this one have died. The cookie is 0 when
the client has left.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft

SLOTS_MAX = 1 << 20
"""More clients than a bus has descriptors for. Slots that were never used take no memory."""
LONG_REQUEST_WORDS = 776
"""For the longest pattern, with its word; what follows changes nothing, and is cut off."""

_CLIENT = 0
_SETTINGS = 1
PENDING = 2
WAITING_MESSAGES = 3
_STEPS = 4
_UNTOLD_PACKETS = 5
_UNKNOWN_LOSS = 6
_NUMBER = 7
_COOKIE = 8
_CONNECTED_AT_US = 9
REQUEST = 10
SLOT_WORDS = 32
"""Whole lines of the processor's cache, so that no two workers write to the same one."""
REQUEST_SHIFT = 32
_REPLY_UNDER_WAY = 1 << 30
COUNT_BITS = 29
_HAS_BEGUN = 1 << COUNT_BITS
_COUNT_MASK = _HAS_BEGUN - 1
_STEPS_MASK = (1 << 32) - 1
_WORD_BYTES = 8
_SHORT_BYTES = (SLOT_WORDS - REQUEST) * _WORD_BYTES
_LONG_BYTES = LONG_REQUEST_WORDS * _WORD_BYTES

_IS_CLOSED = 1
_ECHO = 2
_WANTS_NOTICES = 4
_CHOICES_SHIFT = 3
_CHOICE_BITS = 2
_WANTS_SENDER = 1 << 9
_WORKER_SHIFT = 16
_WORKER_MASK = (1 << 16) - 1
_AGE_SHIFT = 32
_SOFT, _HARD, _ORDER = tuple(Soft), tuple(Hard), tuple(BacklogOrder)


def client_slots_max() -> int:
    """As many as this process may have descriptors for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return SLOTS_MAX if limit < 0 else min(limit, SLOTS_MAX)


def client_slots_words(slots: int) -> int:
    """Shared words of so many slots."""
    return (SLOT_WORDS + LONG_REQUEST_WORDS) * slots


class Connection(NamedTuple):
    """What the front has written of a client."""

    slot: int
    number: int
    cookie: int
    connected_at: float
    """Seconds since 1970."""


class ClientSettings(msgspec.Struct, frozen=True):
    """What a client has chosen."""

    echo: bool
    wants_notices: bool
    flood_control: FloodControl
    wants_sender: bool = False


class ClientSlot:
    """One process's view of the slot of this number, among the words of all slots. `worker` writes
    it, if this process is one."""

    __slots__ = ("_all_words", "_words", "_worker", "at")

    def __init__(self, words: memoryview, number: int, worker: int = 0) -> None:
        self._all_words = words
        self._worker = worker
        self.at = number * SLOT_WORDS
        self._words = words[self.at : self.at + SLOT_WORDS]

    def save(self, client: int, settings: ClientSettings) -> None:
        """The slot is this client's, which has chosen this and is served by this worker."""
        self._words[_SETTINGS] = _packed(settings) | self._worker << _WORKER_SHIFT
        if not self.is_of(client):
            self.forget_pending()
            self.waiting = 0
            self.note_told()
            self._words[_CLIENT] = client

    def is_of(self, client: int) -> bool:
        """Whether this client has ever been served."""
        return bool(self._words[_CLIENT] == client)

    def settings(self) -> ClientSettings:
        """What the client has chosen."""
        return _unpacked(self._words[_SETTINGS])

    @property
    def worker(self) -> int:
        """The one that has served the client last."""
        return int(self._words[_SETTINGS] >> _WORKER_SHIFT & _WORKER_MASK)

    @property
    def pending(self) -> int:
        """How many packets were read of the client and are not done, with the request."""
        return int(self._words[PENDING] & _COUNT_MASK)

    @pending.setter
    def pending(self, packets: int) -> None:
        self._words[PENDING] = self._words[PENDING] & ~_COUNT_MASK | packets

    def forget_pending(self) -> None:
        """All packets are done, and the reply to the request is sent."""
        self._words[PENDING] = 0

    @property
    def waiting(self) -> int:
        """How many messages wait for the client, or were dropped without telling it."""
        return int(self._words[WAITING_MESSAGES])

    @waiting.setter
    def waiting(self, messages: int) -> None:
        self._words[WAITING_MESSAGES] = messages

    # -- what a predecessor has lost -----------------------------------------------------------
    @property
    def untold_packets(self) -> int:
        """How many packets of the client were lost without telling it."""
        return int(self._words[_UNTOLD_PACKETS])

    def lose_pending(self) -> None:
        """The pending packets were lost, but for a request, which will be done. A reply that was
        being sent counts as lost."""
        is_request_kept = self.request and not self.is_reply_in_doubt
        self.lose_packets(self.pending - bool(is_request_kept))
        if is_request_kept:
            self._keep_only_request()
        else:
            self.forget_pending()

    def lose_packets(self, packets: int) -> None:
        """So many more packets of the client were lost, of which it was not told."""
        self._words[_UNTOLD_PACKETS] += packets

    @property
    def has_unknown_loss(self) -> bool:
        """Whether the client has lost messages that nobody has counted, and was not told."""
        return bool(self._words[_UNKNOWN_LOSS])

    def lose_unknown(self) -> None:
        """The client has lost an unknown number of messages."""
        self._words[_UNKNOWN_LOSS] = 1

    def note_told(self) -> None:
        """The client was told of its lost packets and of an unknown loss."""
        self._words[_UNTOLD_PACKETS] = self._words[_UNKNOWN_LOSS] = 0

    # -- the request ---------------------------------------------------------------------------
    def keep_request(self, packet: bytes, pending: int) -> None:
        """A request was read; now so many packets are pending."""
        kept = packet[:_LONG_BYTES]
        self._room(len(kept))[: len(kept)] = kept
        self._words[PENDING] = len(kept) << REQUEST_SHIFT | pending

    @property
    def request(self) -> bytes:
        """The request that is kept, as far as there was room; empty if there is none."""
        size = self._words[PENDING] >> REQUEST_SHIFT
        return bytes(self._room(size)[:size])

    @property
    def is_request_cut(self) -> bool:
        """Whether there may have been no room for all of the request."""
        return bool(self._words[PENDING] >> REQUEST_SHIFT >= _LONG_BYTES)

    def _room(self, size: int) -> memoryview:
        if size <= _SHORT_BYTES:
            return self._words[REQUEST:].cast("B")
        slots = len(self._all_words) // (SLOT_WORDS + LONG_REQUEST_WORDS)
        number = self.at // SLOT_WORDS
        at = slots * SLOT_WORDS + number * LONG_REQUEST_WORDS
        return self._all_words[at : at + LONG_REQUEST_WORDS].cast("B")

    def begin_step(self) -> int:
        """The step of the request is about to get its place; returns its mark."""
        self._words[_STEPS] = (self._words[_STEPS] + 1) & _STEPS_MASK
        self._words[PENDING] |= _HAS_BEGUN
        return self._mark()

    def has_place(self, mark: int) -> bool:
        """Whether the step of the request has its place, if the last step of its worker that has
        has this mark."""
        return bool(self._words[PENDING] & _HAS_BEGUN) and mark == self._mark()

    def _mark(self) -> int:
        return int(self._words[_STEPS] << REQUEST_SHIFT | self.at + 1)

    @contextmanager
    def replying(self) -> Iterator[None]:
        """Around sending the reply, after which nothing is pending. A successor cannot know whether
        the client has it if this worker dies in the meantime."""
        self._words[PENDING] |= _REPLY_UNDER_WAY
        try:
            yield
        except OSError:
            self._words[PENDING] &= ~_REPLY_UNDER_WAY
            raise
        self.forget_pending()

    @property
    def is_reply_in_doubt(self) -> bool:
        return bool(self._words[PENDING] & _REPLY_UNDER_WAY)

    def _keep_only_request(self) -> None:
        """No other packet is pending. A reply that waited is lost with its worker."""
        self._words[PENDING] = self._words[PENDING] & ~_COUNT_MASK | 1

    def close(self) -> None:
        """The client is to be served no more."""
        self._words[_SETTINGS] |= _IS_CLOSED

    @property
    def is_closed(self) -> bool:
        return bool(self._words[_SETTINGS] & _IS_CLOSED)

    # -- the words of the front ----------------------------------------------------------------
    def connect(self, number: int, cookie: int, connected_at: float) -> None:
        """The slot belongs to this connection from now on."""
        self._words[_NUMBER] = number
        self._words[_CONNECTED_AT_US] = int(connected_at * 1e6)
        self._words[_COOKIE] = cookie

    def is_connected(self, number: int) -> bool:
        """Whether the slot belongs to the connection with this number, which has not ended."""
        return bool(self._words[_NUMBER] == number and self._words[_COOKIE])

    @property
    def number(self) -> int:
        """Among all slots."""
        return self.at // SLOT_WORDS

    def disconnect(self) -> None:
        """The slot belongs to no connection any more."""
        self._words[_COOKIE] = 0


class ClientSlots:
    """One process's view of all slots; `worker` is its number, if it is one."""

    def __init__(self, words: memoryview, worker: int = 0) -> None:
        self.words = words
        self._worker = worker

    def __getitem__(self, number: int) -> ClientSlot:
        return ClientSlot(self.words, number, self._worker)

    def with_mark(self, mark: int) -> ClientSlot:
        """The slot of a request whose step has this mark."""
        return self[((mark & _STEPS_MASK) - 1) // SLOT_WORDS]

    def connections(self) -> Iterator[Connection]:
        """Of all slots that have ever belonged to one; slots are given out from the first on."""
        for slot in range(len(self.words) // (SLOT_WORDS + LONG_REQUEST_WORDS)):
            own = self.words[slot * SLOT_WORDS : slot * SLOT_WORDS + REQUEST]
            if not own[_NUMBER]:
                break
            yield Connection(slot, own[_NUMBER], own[_COOKIE], own[_CONNECTED_AT_US] / 1e6)


def _packed(settings: ClientSettings) -> int:
    chosen = settings.flood_control
    choices = (_SOFT.index(chosen.soft), _HARD.index(chosen.hard), _ORDER.index(chosen.order))
    word = _ECHO * settings.echo | _WANTS_NOTICES * settings.wants_notices
    word |= _WANTS_SENDER * settings.wants_sender
    word |= chosen.age_ms_max << _AGE_SHIFT
    for position, choice in enumerate(choices):
        word |= choice << (_CHOICES_SHIFT + position * _CHOICE_BITS)
    return word


def _unpacked(word: int) -> ClientSettings:
    soft, hard, order = (
        word >> (_CHOICES_SHIFT + position * _CHOICE_BITS) & ((1 << _CHOICE_BITS) - 1)
        for position in range(3)
    )
    age_ms_max = word >> _AGE_SHIFT
    chosen = FloodControl(
        soft=_SOFT[soft], hard=_HARD[hard], order=_ORDER[order], age_ms_max=age_ms_max
    )
    echo, wants_notices, wants_sender = (
        bool(word & flag) for flag in (_ECHO, _WANTS_NOTICES, _WANTS_SENDER)
    )
    return ClientSettings(echo, wants_notices, chosen, wants_sender)

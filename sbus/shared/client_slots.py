"""Client slots: what a successor needs to know of each client when its worker dies.

The front gives every client a slot, and the worker that serves the client writes it. Each word is
valid by itself, so neither needs the lock, and a death at any store leaves the value before it or
the one behind it. A slot is its client's from the moment when it has the client's number: until
then the client has chosen nothing.

    slot = client's number  |  settings  |  pending packets  |  waiting messages

Pending packets are those that the worker has read and that are not done. The word is written after
each that is read, and after those that are done, so a death in between adds a packet that was not
read, or leaves out one that was, or adds those that were done in that instant.

Waiting messages are those in the client's backlog, and those that were dropped and that it was not
told of. The word is written whenever that has changed.
"""

import resource

import msgspec

from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft

SLOTS_MAX = 1 << 20
"""More clients than a bus has descriptors for. Slots that were never used take no memory."""

_CLIENT = 0
_SETTINGS = 1
PENDING = 2
WAITING_MESSAGES = 3
SLOT_WORDS = 8
"""A line of the processor's cache, so that no two workers write to the same one."""

_IS_CLOSED = 1
_ECHO = 2
_WANTS_NOTICES = 4
_CHOICES_SHIFT = 3
_CHOICE_BITS = 2
_SOFT, _HARD, _ORDER = tuple(Soft), tuple(Hard), tuple(BacklogOrder)


def client_slots_words() -> int:
    """Shared words of the slots of as many clients as this process may have descriptors for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return SLOT_WORDS * (SLOTS_MAX if limit < 0 else min(limit, SLOTS_MAX))


class ClientSettings(msgspec.Struct, frozen=True):
    """What a client has chosen."""

    echo: bool
    wants_notices: bool
    flood_control: FloodControl


class ClientSlot:
    """One process's view of one slot, which begins at this place among the words of all."""

    __slots__ = ("_words", "at")

    def __init__(self, words: memoryview, at: int) -> None:
        self._words = words[at : at + SLOT_WORDS]
        self.at = at

    def save(self, client: int, settings: ClientSettings) -> None:
        """The slot is this client's, which has chosen this."""
        self._words[_SETTINGS] = _packed(settings)
        if not self.is_of(client):
            self.pending = self.waiting = 0
            self._words[_CLIENT] = client

    def is_of(self, client: int) -> bool:
        """Whether this client has ever been served."""
        return bool(self._words[_CLIENT] == client)

    def settings(self) -> ClientSettings:
        """What the client has chosen."""
        return _unpacked(self._words[_SETTINGS])

    @property
    def pending(self) -> int:
        """How many packets were read of the client and are not done."""
        return int(self._words[PENDING])

    @pending.setter
    def pending(self, packets: int) -> None:
        self._words[PENDING] = packets

    @property
    def waiting(self) -> int:
        """How many messages wait for the client, or were dropped without telling it."""
        return int(self._words[WAITING_MESSAGES])

    @waiting.setter
    def waiting(self, messages: int) -> None:
        self._words[WAITING_MESSAGES] = messages

    def close(self) -> None:
        """The client is to be served no more."""
        self._words[_SETTINGS] |= _IS_CLOSED

    @property
    def is_closed(self) -> bool:
        return bool(self._words[_SETTINGS] & _IS_CLOSED)


class ClientSlots:
    """One process's view of all slots."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def __getitem__(self, number: int) -> ClientSlot:
        return ClientSlot(self._words, number * SLOT_WORDS)


def _packed(settings: ClientSettings) -> int:
    chosen = settings.flood_control
    choices = (_SOFT.index(chosen.soft), _HARD.index(chosen.hard), _ORDER.index(chosen.order))
    word = _ECHO * settings.echo | _WANTS_NOTICES * settings.wants_notices
    for position, choice in enumerate(choices):
        word |= choice << (_CHOICES_SHIFT + position * _CHOICE_BITS)
    return word


def _unpacked(word: int) -> ClientSettings:
    soft, hard, order = (
        word >> (_CHOICES_SHIFT + position * _CHOICE_BITS) & ((1 << _CHOICE_BITS) - 1)
        for position in range(3)
    )
    chosen = FloodControl(soft=_SOFT[soft], hard=_HARD[hard], order=_ORDER[order])
    return ClientSettings(bool(word & _ECHO), bool(word & _WANTS_NOTICES), chosen)

"""What a worker is delivering, so that its successor can go on where it died.

A worker delivers one sequence: it walks log blocks, and in between it delivers its own publish
batches, which are in no log. A message goes to its recipients in the order of their slots. So one
word says how far a fan-out has come, and a successor finds the rest with the same routes:

    walked | walk progress | batch | but for | batch progress | number of keys | keys

    everything destined to the worker before `walked` has been delivered
    walk progress    the delivery under way of the log block at `walked`, if it has the same
                     sequence number: the lowest bits of `walked`, the highest of this. So until
                     this is cleared, what stands here of the block before does not count
    batch            the number of the last publish batch with recipients here; it has its place in
                     the order when the control word STEP_BATCH has the same number
    but for          the slot of its publisher, if that does not want its own messages
    batch progress   the delivery under way of that batch; all bits when it is done

A delivery is noted before its `send`, so a death leaves at most one in doubt. Each word has one
writer, and a death at any store leaves one of the states described here.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from sbus.shared.shared_memory import (
    IN_FLIGHT_WORDS,
    STEP_BATCH,
    STEP_END,
    STEP_REQUEST,
    WORDS_PER_WORKER,
    WORKER_WORDS,
    SharedMemory,
)

WALKED = 0
WALK_PROGRESS = 1
BATCH = 2
BUT_FOR = 3
BATCH_PROGRESS = 4
KEYS = 5
FIRST_KEY = 6

SEQUENCE_BITS = 6
"""Positions in the log are multiples of 64."""
SEQUENCE_SHIFT = 64 - SEQUENCE_BITS
NUMBER_SHIFT = 32
"""A delivery is the number of the message in its log block or batch, and its recipient's slot from
1 on."""
DONE = (1 << 64) - 1
NOBODY = (1 << 32) - 1
"""No slot begins there."""
_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
_LOW_MASK = (1 << NUMBER_SHIFT) - 1
_KEY_BYTES = struct.Struct("=I")


def delivery(number: int, slot_at: int) -> int:
    """The delivery of the message of this number to the client with this slot."""
    return (number << NUMBER_SHIFT) + slot_at + 1


class InterruptedBatch(NamedTuple):
    """A publish batch that has its place in the order, and was not delivered to all recipients."""

    keys: list[bytes]
    """Of its messages, as far as there was room for them."""
    is_complete: bool
    """There was room for all."""
    but_for: int
    under_way: int
    """Deliveries before this one are made; this one is in doubt."""


class InFlight:
    """One process's view of what one worker is delivering."""

    __slots__ = ("_key_bytes", "_own", "_words", "batch_progress", "walk_progress")

    def __init__(self, memory: SharedMemory, worker: int) -> None:
        first = worker * IN_FLIGHT_WORDS
        self._words = memory.in_flight[first : first + IN_FLIGHT_WORDS]
        self._key_bytes = self._words[FIRST_KEY:].cast("B")
        self._own = WORKER_WORDS + worker * WORDS_PER_WORKER
        self.walk_progress = self._words[WALK_PROGRESS : WALK_PROGRESS + 1]
        """A word: `begin_block` returns what to add to the deliveries that are stored here."""
        self.batch_progress = self._words[BATCH_PROGRESS : BATCH_PROGRESS + 1]
        """A word, for deliveries of the batch."""

    def start(self, position: int) -> None:
        """Begin to serve at this position of the log: nothing of a predecessor is under way."""
        self.end_batch()
        self.begin_block(position)

    # -- walking -------------------------------------------------------------------------------
    def begin_block(self, position: int) -> int:
        """Everything before this position of the log has been delivered."""
        sequence = (self._words[WALKED] + 1) & _SEQUENCE_MASK
        self._words[WALKED] = position | sequence
        self._words[WALK_PROGRESS] = 0  # later blocks have the same sequence number again
        return sequence << SEQUENCE_SHIFT

    def block_base(self) -> int:
        """What `begin_block` returned last."""
        return (self._words[WALKED] & _SEQUENCE_MASK) << SEQUENCE_SHIFT

    def walked(self) -> tuple[int, int]:
        """The position before which everything has been delivered, and the delivery under way of
        the log block there; 0 if none has begun."""
        word, progress = self._words[WALKED], self._words[WALK_PROGRESS]
        sequence = word & _SEQUENCE_MASK
        has_begun = progress >> SEQUENCE_SHIFT == sequence
        return word - sequence, progress & ((1 << SEQUENCE_SHIFT) - 1) if has_begun else 0

    # -- publishing ----------------------------------------------------------------------------
    def begin_batch(self, but_for: int, keys: Iterable[bytes]) -> int:
        """A publish batch with these keys is about to get its place; returns its number."""
        words, room = self._words, self._key_bytes
        number: int = words[BATCH] % _LOW_MASK + 1
        words[BATCH] = number
        words[BATCH_PROGRESS] = 0
        words[BUT_FOR] = but_for
        at = count = 0
        for key in keys:
            end = at + _KEY_BYTES.size + len(key)
            if end > len(room):
                break
            room[at:end] = _KEY_BYTES.pack(len(key)) + key
            at = end
            count += 1
        words[KEYS] = count
        return number

    def place_batch(self, words: memoryview, number: int, messages: int) -> None:
        """So many messages of a batch get their place in the order. Under the lock."""
        words[self._own + STEP_BATCH] = messages << NUMBER_SHIFT | number

    def note_step(self, words: memoryview, end: int) -> int:
        """A step takes effect when the log has been walked to `end`, which is returned. Under the
        lock."""
        words[self._own + STEP_END] = end
        return end

    def place_request(self, words: memoryview, mark: int) -> None:
        """The step of the request with this mark gets its place; 0: of none. Under the lock."""
        words[self._own + STEP_REQUEST] = mark

    def end_batch(self) -> None:
        """It has been delivered."""
        self.batch_progress[0] = DONE

    def step_end(self, words: memoryview) -> int:
        """To where the log is walked before the last step takes effect. Under the lock."""
        return int(words[self._own + STEP_END])

    def placed_request(self, words: memoryview) -> int:
        """The mark of the last request whose step has its place. Under the lock."""
        return int(words[self._own + STEP_REQUEST])

    def interrupted_batch(self, words: memoryview) -> InterruptedBatch | None:
        """The last batch, if it has its place and is not done. Under the lock."""
        placed, own = words[self._own + STEP_BATCH], self._words
        if not placed or placed & _LOW_MASK != own[BATCH] or own[BATCH_PROGRESS] == DONE:
            return None
        messages = placed >> NUMBER_SHIFT
        keys = []
        at = 0
        for _ in range(min(messages, own[KEYS])):
            (key_bytes,) = _KEY_BYTES.unpack_from(self._key_bytes, at)
            at += _KEY_BYTES.size
            keys.append(bytes(self._key_bytes[at : at + key_bytes]))
            at += key_bytes
        is_complete = len(keys) == messages
        return InterruptedBatch(keys, is_complete, own[BUT_FOR], own[BATCH_PROGRESS])

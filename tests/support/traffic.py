"""Numbered messages between clients that must not be affected by what a test does to the bus.

Each publisher numbers its messages and takes part in the reading: it goes on only while its own
subscriber has all but the last few, so no backlog ever fills. Every subscriber checks each number
as it comes; a gap, a double or a swap is an error in its thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile

AHEAD_MAX = 50


class Stream:
    """Messages from one client to another, in threads of their own."""

    def __init__(self, publisher: RawClient, subscriber: RawClient, key: bytes) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._key = key
        self._room = threading.Semaphore(AHEAD_MAX)
        self.received = 0
        subscriber.sub(key)
        subscriber.whoami()

    def publish(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            if self._room.acquire(timeout=0.05):
                self._publisher.pub(self._key, b"%d" % number)
                number += 1
        self._publisher.pub(self._key, b"end %d" % number)

    def receive(self, _stop: threading.Event) -> None:
        while True:
            payload = self._subscriber.receive().removeprefix(b"MSG " + self._key + b"\0")
            if payload == b"end %d" % self.received:
                return
            assert payload == b"%d" % self.received, f"not number {self.received}: {payload!r}"
            self.received += 1
            self._room.release()


@contextmanager
def flowing(*streams: Stream) -> Iterator[None]:
    """Messages flow during the block; at its end every one of them must have arrived."""
    with meanwhile(
        *(stream.publish for stream in streams), *(stream.receive for stream in streams)
    ):
        yield
    assert all(stream.received for stream in streams)

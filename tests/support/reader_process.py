"""A subscriber in a process of its own, which reads nothing and ends by a signal."""

from contextlib import AbstractContextManager

from tests.support.children import child_that
from tests.support.raw_client import RawClient


def reader_process(address: str, *packets: bytes) -> AbstractContextManager[int]:
    """Connect, send `packets`, and read no more; yields the id of the process that does it."""

    def connect() -> RawClient:
        client = RawClient(address)
        for packet in packets:
            client.send(packet)
        client.whoami()
        return client

    return child_that(connect)

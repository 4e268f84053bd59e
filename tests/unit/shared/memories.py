"""Shared memory for tests: small, closed at the end; memory for accounts alone; and children that
die while they hold the lock.

All "workers" of a test may share the lock's one open file description, because they take turns.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sbus.limits import Limits
from sbus.shared.account_book import AccountBook
from sbus.shared.accounts import Account, accounts_words
from sbus.shared.client_slots import LONG_REQUEST_WORDS, SLOT_WORDS, ClientSlot, ClientSlots
from sbus.shared.log_block import LogBlock, Publisher, build_log_block
from sbus.shared.shared_memory import WORD_BYTES, SharedMemory
from tests.support.children import child_that


def small_limits(log_bytes: int = 2048, table_bytes: int = 4096) -> Limits:
    return Limits(log_bytes=log_bytes, table_bytes=table_bytes)


def account_memory(workers: int, limits: Limits) -> memoryview:
    """Words for accounts, without the other parts."""
    return memoryview(bytearray(WORD_BYTES * accounts_words(workers, limits))).cast("Q")


def open_account(limits: Limits, uid: int = 1000) -> Account:
    """The account of the only user of a bus with one worker."""
    account = AccountBook(account_memory(1, limits), 1, limits).of(uid, limits.user, 0)
    assert account is not None
    return account


def spare_slot() -> ClientSlot:
    """A client's slot that no other process sees."""
    return spare_slots(1)[0]


def spare_slots(count: int = 64) -> ClientSlots:
    """The slots of several clients, which no other process sees."""
    size_bytes = WORD_BYTES * (SLOT_WORDS + LONG_REQUEST_WORDS) * count
    return ClientSlots(memoryview(bytearray(size_bytes)).cast("Q"))


@contextmanager
def open_memory(workers: int, limits: Limits | None = None) -> Iterator[SharedMemory]:
    """Shared memory whose lock is not open yet, so that the test may fork."""
    memory = SharedMemory(workers, limits or small_limits())
    try:
        yield memory
    finally:
        memory.close()


def child_holding_the_lock(
    memory: SharedMemory, act: Callable[[memoryview], None]
) -> AbstractContextManager[int]:
    """A process that took the lock, did `act` and holds it until it is killed; gives its pid.

    It is killed at the end at the latest. The lock must not be open here yet.
    """

    def take() -> None:
        memory.lock.open()
        act(memory.lock.__enter__())

    return child_that(take)


def was_woken(memory: SharedMemory, worker: int) -> bool:
    """Whether its eventfd was written since this was last asked."""
    try:
        return os.eventfd_read(memory.eventfds[worker]) > 0
    except BlockingIOError:
        return False


def log_block_of(client: int, account: int, entries: Iterable[tuple[int, bytes, int]]) -> LogBlock:
    """A log block with the (destination mask, packet, key length) entries of one client, whose user
    has this account."""
    numbered = [(*entry, number) for number, entry in enumerate(entries)]
    return build_log_block(Publisher(client, 1000, 100, 4711, account), 0, numbered)

"""A worker with the compiled step of a release dies after each change of the shared memory:
`python -m tests.unit.broker.worker.stepped_deaths`, with SBUS_TEST_STEP. Prints what came of that.

Changes are found by single steps, so the deaths are those of the machine code that a bus executes.
Only what a successor reads is watched: whether the critical section is valid, what is in flight,
and the clients' slots.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from tests.support import compiled_step

compiled_step.load()

from sbus.shared.client_slots import SLOT_WORDS  # noqa: E402
from sbus.shared.shared_memory import LAST_PLACE, SELECTOR, SharedMemory  # noqa: E402
from tests.fuzz.one_process_bus import OneProcessBus, Peer, one_process_bus  # noqa: E402
from tests.support.stepped_child import begin_or_end_steps, dies_after  # noqa: E402
from tests.unit.broker.worker.test_unfinished_work import (  # noqa: E402
    LIMITS,
    MESSAGES,
    READERS,
    outcome_of,
    publish_elsewhere,
    publish_here,
)

_WATCHED_SLOTS = 8
_WATCHED_IN_FLIGHT = 16
CHANGES_MAX = 200


class SteppedOutcome(NamedTuple):
    """Of a death after so many changes."""

    received: list[list[str]]
    lost: list[int]
    has_place: bool
    """The messages have their place in the total order."""


class _SteppedStep:
    """The compiled step, whose calls are stepped."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._step, name)

        def call(*arguments: Any) -> Any:
            begin_or_end_steps()
            result = method(*arguments)
            begin_or_end_steps()
            return result

        return call


def _watched(memory: SharedMemory) -> Callable[[], bytes]:
    parts = (
        memory.lock.words[SELECTOR : SELECTOR + 1],
        memory.in_flight[:_WATCHED_IN_FLIGHT],
        memory.client_slots[: _WATCHED_SLOTS * SLOT_WORDS],
    )
    return lambda: b"".join(parts)


def _dies_after(bus: OneProcessBus, changes: int) -> bool:
    """Have a child be the first worker and die after so many changes; False if it made fewer."""

    def act() -> None:
        # With a description of its own, which frees the lock when the child ends.
        os.dup2(os.open(f"/proc/self/fd/{bus.memory.fd}", os.O_RDWR), bus.memory.lock.fd)
        sequencer = bus.stepped[0].parts.sequencer
        sequencer._step = sequencer._walker._step = _SteppedStep(sequencer._step)
        while bus.stepped[0].is_awake():
            pass

    return dies_after(changes, act, _watched(bus.memory))


def _last_place(bus: OneProcessBus) -> int:
    with bus.memory.lock as words:
        return int(words[LAST_PLACE])


def outcomes(publish: Callable[[OneProcessBus, list[Peer]], None]) -> Iterator[SteppedOutcome]:
    """Of a death after each change in turn; the last is without a death."""
    for changes in range(CHANGES_MAX):
        with one_process_bus("slash", LIMITS) as bus:
            readers = [bus.connect(0) for _ in range(READERS)]
            publishers = [bus.connect(0), bus.connect(1)]
            for reader in readers:
                for packet in (b"CMSG !/notices/on", b"SUB a", b"SUB b"):
                    reader.send(packet)
            bus.settle()
            for publisher in publishers:  # now the routes are known
                for message in MESSAGES:
                    publisher.send(message)
                bus.settle()
            for reader in readers:
                reader.read()
            before = _last_place(bus)
            publish(bus, publishers)
            has_died = _dies_after(bus, changes)
            has_place = _last_place(bus) > before
            bus.replace(0)
            bus.settle()
            received, lost, _ = outcome_of(readers, [])
            yield SteppedOutcome([[it.decode() for it in one] for one in received], lost, has_place)
            if not has_died:
                return
    raise AssertionError("it makes too many changes")


def main() -> None:
    found = {it.__name__: list(outcomes(it)) for it in (publish_here, publish_elsewhere)}
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()

"""Joiners of last values at random moments of a stream of numbers.

    python -m tests.broker.last_values_joiners --joiners 1000 --messages 100000

Each joiner compares: its snapshot is the newest number of each key before the first number that
follows, and then no number is missing and none comes twice.
"""

import argparse
import random
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

import sbus
from tests.support.bus import Bus, running_bus

KEYS = 20
JOINERS_AT_ONCE = 20
FOLLOWED = 1_000
"""Numbers that a joiner reads before it leaves, unless the stream ends."""
SYNC_EVERY = 50
"""Numbers between two barriers of the publisher, so that others have their turns."""


async def serve(address: str, *, task_status: TaskStatus[None]) -> None:
    async with sbus.connect(address) as bus, anyio.create_task_group() as tasks:
        tasks.start_soon(bus.serve_last_values, "numbers/")
        async with sbus.connect(address) as asker:
            while not await is_served(asker):
                pass
        task_status.started()


async def is_served(bus: sbus.Connection[sbus.Message]) -> bool:
    """Whether a service answers soon; a joiner that came before it has to ask again."""
    try:
        async with bus.last_values("numbers/", timeout_seconds=1):
            return True
    except TimeoutError:
        return False


async def publish(
    address: str, messages: int, begin: Callable[[], object], moments: set[int]
) -> None:
    """Publish so many numbers, and `begin` a joiner at each of these moments."""
    async with sbus.connect(address) as bus:
        for number in range(messages):
            if number in moments:
                begin()
            await bus.publish(key_of(number), str(number))
            if number % SYNC_EVERY == 0:
                await bus.sync()


async def join(address: str, messages: int) -> int:
    """Join, compare, and return the first number that followed the snapshot."""
    numbers: list[int] = []
    last = messages - 1
    async with sbus.connect(address) as bus, bus.last_values("numbers/*") as stream:
        while not numbers or numbers[-1] < min(last, numbers[0] + FOLLOWED):
            for message in await stream.receive_many():
                numbers.append(int(message.payload))
                assert message.key == key_of(numbers[-1])
    return place_of_joining(numbers)


def key_of(number: int) -> bytes:
    return b"numbers/%d" % (zlib.crc32(b"%d" % number) % KEYS)


def place_of_joining(numbers: list[int]) -> int:
    """The number before which the snapshot was taken: those before it are the newest of each key,
    and it and all others follow each other."""
    for at in range(len(numbers) - 1, -1, -1):
        if numbers[at] != numbers[-1] - (len(numbers) - 1 - at):
            break
        if numbers[:at] == newest_before(numbers[at]):
            return numbers[at]
    assert numbers == newest_before(numbers[-1] + 1), f"no snapshot and what follows it: {numbers}"
    return numbers[-1] + 1


def newest_before(number: int) -> list[int]:
    """The newest number of each key below this one, in order."""
    newest: dict[bytes, int] = {}
    for earlier in range(number - 1, -1, -1):
        newest.setdefault(key_of(earlier), earlier)
        if len(newest) == KEYS:
            break
    return sorted(newest.values())


async def run(bus: Bus, joiners: int, messages: int) -> int:
    """Returns at how many different places they have joined."""
    places = set()
    at_once = anyio.CapacityLimiter(JOINERS_AT_ONCE)
    moments = set(random.sample(range(messages), joiners))

    async with anyio.create_task_group() as tasks:
        await tasks.start(serve, bus.address)

        async with anyio.create_task_group() as joining:

            async def join_once() -> None:
                async with at_once:
                    places.add(await join(bus.address, messages))

            await publish(bus.address, messages, lambda: joining.start_soon(join_once), moments)
        tasks.cancel_scope.cancel()
    return len(places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--joiners", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running_bus(Path(directory)) as bus:
        places = anyio.run(run, bus, options.joiners, options.messages)
    print(f"{options.joiners} joiners at {places} places: each had the whole")


if __name__ == "__main__":
    main()

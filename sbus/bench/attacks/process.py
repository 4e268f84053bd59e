"""`python -m sbus.bench.attacks.process ROLE UID ADDRESS`: an attacker or a victim as a process.

ROLE is the name of an attack, `messages-N` for a victim with N clients, `connections`, or
`burn-PERCENT` for a process that uses so much of a processor. Commands are lines on stdin: `for MS`
goes on for a time, and `leave 0` ends an attack. The reply is a line `done name=number ...`.
"""

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from sbus.bench.attacks.connections import Connections
from sbus.bench.attacks.programs import ATTACKS, Program
from sbus.bench.attacks.victims import ConnectVictim, MessageVictim

NAP_SECONDS = 0.001

Command = Callable[[int], dict[str, int]]


def without_end(program: Program, bus: Connections) -> Iterator[bool]:
    """Attack again and again, with new connections each time the bus ends or ignores one."""
    while True:
        try:
            yield from program(bus)
        except (ConnectionError, BlockingIOError) as error:
            bus.counts[type(error).__name__] += 1
        bus.close_all()
        yield True


def attack(steps: Iterator[bool], bus: Connections, milliseconds: int) -> dict[str, int]:
    """Counts are of all that was done since the process began to prepare itself."""
    begin, cpu = time.monotonic(), time.process_time()
    while (wall := time.monotonic() - begin) < milliseconds / 1_000:
        next(steps)
        bus.counts["steps"] += 1
    percent = round(100 * (time.process_time() - cpu) / wall)
    return {"cpu_percent": percent, **bus.counts}


def leave(bus: Connections, _: int) -> dict[str, int]:
    bus.close_all()
    return dict(bus.counts)


def burn(percent: int, milliseconds: int) -> dict[str, int]:
    begin, cpu = time.monotonic(), time.process_time()
    while (wall := time.monotonic() - begin) < milliseconds / 1_000:
        if time.process_time() - cpu > wall * percent / 100:
            time.sleep(NAP_SECONDS)
    return {}


def commands_of(role: str, address: str) -> dict[str, Command]:
    """Of a process that has prepared itself."""
    if role in ATTACKS:
        bus = Connections(address)
        steps = without_end(ATTACKS[role].program, bus)
        while not next(steps):
            pass
        return {"for": partial(attack, steps, bus), "leave": partial(leave, bus)}
    name, _, number = role.partition("-")
    if name == "burn":
        return {"for": partial(burn, int(number))}
    victim = MessageVictim(address, int(number)) if name == "messages" else ConnectVictim(address)
    return {"for": lambda milliseconds: victim.run(milliseconds / 1_000)}


def become(uid: int) -> None:
    """This process is this user's from now on, with as many descriptors as it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main(role: str, uid: str, address: str) -> None:
    become(int(uid))
    commands = commands_of(role, address)
    print("ready", flush=True)
    for line in sys.stdin:
        word, number = line.split()
        figures = commands[word](int(number))
        print("done", *(f"{name}={value}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

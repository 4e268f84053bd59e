"""`python -m sbus.bench.attacks.process ROLE UID ADDRESS`: an attacker or a victim as a process.

ROLE is the name of an attack, `messages-N` for a victim with N clients, `connections`, or
`burn-PERCENT` for a process that uses so much of a processor. Commands are lines on stdin: `for MS`
goes on for a time, `go STEPS` makes so many steps of an attack, and `leave 0` ends an attack. The
reply to each is a line `done name=number ...`.
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

DESCRIPTORS_MAX = 4_096
NAP_SECONDS = 0.001

Command = Callable[[int], dict[str, int]]


def without_end(program: Program, bus: Connections) -> Iterator[bool]:
    """Attack again and again, with new connections each time the bus ends or ignores one."""
    while True:
        try:
            yield from program(bus)
        except (ConnectionError, BlockingIOError, TimeoutError) as error:
            bus.counts[type(error).__name__] += 1
        bus.close_all()
        yield True


class AttackingProcess:
    """Prepares its attack, and then attacks on command."""

    def __init__(self, program: Program, address: str) -> None:
        self._bus = Connections(address)
        self._steps = without_end(program, self._bus)
        while not next(self._steps):
            pass

    def attack_for(self, milliseconds: int) -> dict[str, int]:
        end = time.monotonic() + milliseconds / 1_000
        return self._attack(lambda steps: time.monotonic() < end)

    def make_steps(self, number: int) -> dict[str, int]:
        return self._attack(lambda steps: steps < number)

    def _attack(self, goes_on: Callable[[int], bool]) -> dict[str, int]:
        self._bus.counts.clear()
        wall, cpu, steps = time.monotonic(), time.process_time(), 0
        while goes_on(steps):
            next(self._steps)
            steps += 1
        percent = 100 * (time.process_time() - cpu) / (time.monotonic() - wall)
        return {"steps": steps, "cpu_percent": round(percent), **self._bus.counts}

    def leave(self, _: int) -> dict[str, int]:
        self._bus.counts.clear()
        self._bus.close_all()
        return dict(self._bus.counts)


def burn(percent: int, milliseconds: int) -> dict[str, int]:
    begin, cpu = time.monotonic(), time.process_time()
    while (wall := time.monotonic() - begin) < milliseconds / 1_000:
        if time.process_time() - cpu > wall * percent / 100:
            time.sleep(NAP_SECONDS)
    return {}


def commands_of(role: str, address: str) -> dict[str, Command]:
    if role in ATTACKS:
        process = AttackingProcess(ATTACKS[role].program, address)
        return {"for": process.attack_for, "go": process.make_steps, "leave": process.leave}
    name, _, number = role.partition("-")
    if name == "burn":
        return {"for": partial(burn, int(number))}
    victim = MessageVictim(address, int(number)) if name == "messages" else ConnectVictim(address)
    return {"for": lambda milliseconds: victim.run(milliseconds / 1_000)}


def become(uid: int) -> None:
    """This process is this user's from now on."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS_MAX), hard))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def report(word: str, figures: dict[str, int]) -> None:
    print(word, *(f"{name}={number}" for name, number in figures.items()), flush=True)


def main(role: str, uid: str, address: str) -> None:
    become(int(uid))
    commands = commands_of(role, address)
    report("ready", {})
    for line in sys.stdin:
        word, number = line.split()
        report("done", commands[word](int(number)))


if __name__ == "__main__":
    main(*sys.argv[1:])

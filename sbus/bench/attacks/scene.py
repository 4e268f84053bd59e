"""A scene: attackers of some users, and a victim of another user, on a running bus.

Every participant is a process of its own. Latencies that a victim has in an attack are compared
with those in a *control*: the attackers have left the bus, and processes beside it use as much of
the processors as the attack did.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.bench import BenchmarkFailed
from sbus.bench.attacks.programs import ATTACKS
from sbus.bench.programs import START_SECONDS_MAX, Child, running

VICTIM_UID, FIRST_ATTACKER_UID = 65_532, 65_520
"""Users that no host has; they need no names."""
PHASE_SECONDS_MAX = 60.0
"""What has not ended so long after its time has failed."""

Figures = Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """What the victim noticed (see `victims.py`), and what each attacker has counted so far."""

    messages: Figures
    connections: Figures
    attackers: Sequence[Figures]

    @property
    def lost(self) -> int:
        """Messages, connections, and what came out of order."""
        messages = ("lost", "disordered", "disconnected")
        return sum(self.messages[name] for name in messages) + self.connections["failed"]

    @property
    def p99_us(self) -> int:
        if "p99_us" not in self.messages:
            raise BenchmarkFailed("no message of the victim arrived")
        return self.messages["p99_us"]

    @property
    def connect_p99_ms(self) -> float:
        if "p99_us" not in self.connections:
            raise BenchmarkFailed("the victim was never admitted")
        return self.connections["p99_us"] / 1_000

    def count(self, name: str) -> int:
        """Of all attackers."""
        return sum(those.get(name, 0) for those in self.attackers)


class Scene:
    """All are ready, and wait for a command."""

    def __init__(
        self, start: Callable[[Sequence[str], int], list[Child]], clients: int, attack: str
    ) -> None:
        self._start = start
        self._victims = start([f"messages-{clients}", "connections"], VICTIM_UID)
        users = range(ATTACKS[attack].users)
        self._attackers = [start([attack], FIRST_ATTACKER_UID + user)[0] for user in users]

    def quiet(self, seconds: float) -> Outcome:
        return self._play([], seconds)

    def attack(self, seconds: float) -> Outcome:
        return self._play(self._attackers, seconds)

    def leave(self) -> None:
        for attacker in self._attackers:
            attacker.ask("leave 0", "done", PHASE_SECONDS_MAX)

    def control(self, seconds: float, percents: Iterable[int]) -> Outcome:
        """Processes of an attacker use so much of a processor each."""
        roles = [f"burn-{percent}" for percent in percents]
        return self._play(self._start(roles, FIRST_ATTACKER_UID), seconds)

    def _play(self, others: Sequence[Child], seconds: float) -> Outcome:
        """The victim and these others go on for a time."""
        patience = PHASE_SECONDS_MAX + seconds
        for child in (*others, *self._victims):
            child.tell(f"for {seconds * 1_000:.0f}")
        counts = [other.wait_for_report("done", patience) for other in others]
        messages, connections = (it.wait_for_report("done", patience) for it in self._victims)
        return Outcome(messages, connections, counts)


@contextlib.contextmanager
def scene(attack: str, address: str, directory: Path, victim_clients: int = 2) -> Iterator[Scene]:
    """The victim is there first, so a bus that spreads its clients gives it that many workers.

    Needs root. The bus must admit other users, who must be able to reach its address.
    """
    with contextlib.ExitStack() as stack:

        def start(roles: Sequence[str], uid: int) -> list[Child]:
            program = [sys.executable, "-P", "-m", "sbus.bench.attacks.process"]
            children = [
                stack.enter_context(
                    running(f"{role}-{uid}", [*program, role, str(uid), address], directory, None)
                )
                for role in roles
            ]
            for child in children:
                child.wait_for_report("ready", START_SECONDS_MAX)
            return children

        yield Scene(start, victim_clients, attack)

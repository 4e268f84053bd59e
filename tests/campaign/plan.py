"""What a seed stands for: the bus of a run, its clients, and what happens to it, and when."""

import random
from typing import NamedTuple

STEPS = ("compiled", "python", "mixed")
EVENTS = {
    "move": 12,
    "upgrade": 3,
    "kill-worker": 4,
    "stop-worker": 2,
    "stop-front": 1,
    "kill-front": 1,
    "kill-all": 1,
    "reload": 2,
    "kick": 1,
    "full-disk": 1,
    "connections": 2,
}
"""How often each of them happens where it may happen."""
FATAL = {"kill-worker", "stop-worker", "kill-front", "kill-all"}
_FEW_DESCRIPTORS = 400
_FIRST_SECONDS = 0.5
_SEEDS_PER_FULL_DISK = 10
"""One of so many runs begins with a full disk, whatever else happens in it."""


class Event(NamedTuple):
    at: float
    """Seconds after the start of the load."""
    name: str
    chance: float
    """Decides between 0 and 1 whom it concerns, or for how long."""


class Plan(NamedTuple):
    """One run."""

    seed: int
    workers: int
    dialect: str
    step: str
    descriptors: int
    """Open files of each process; 0 for as many as there may be."""
    backlog: int
    """Messages that may wait for a client."""
    seconds: float
    actions_per_second: int
    clients: int
    events: list[Event]

    def __str__(self) -> str:
        names = sorted({event.name for event in self.events})
        return (
            f"{self.workers} workers, {self.dialect}, {self.step}, {self.clients} clients, "
            f"backlogs of {self.backlog}, "
            f"{self.seconds:.0f} s, {len(self.events)} events ({', '.join(names)})"
        )


def plan_of(seed: int, seconds: float | None = None) -> Plan:
    """The plan of a seed. A third of the runs have no deaths, so that nothing may be lost."""
    chance = random.Random(seed)
    workers = chance.choice((1, 2, 2, 3, 4, 4, 6, 8))
    dialect = "dot" if chance.random() < 0.2 else "slash"
    step = chance.choice(STEPS)
    few = chance.random() < 0.2
    drawn = chance.uniform(10, 40)
    may_die = chance.random() < 0.67
    names = [
        name
        for name in EVENTS
        if chance.random() < 0.6 and (may_die or name not in FATAL) and name != "connections"
    ]
    if few:
        names.append("connections")
    length = drawn if seconds is None else seconds
    events = list(_events(chance, names or ["move"], length))
    if seed % _SEEDS_PER_FULL_DISK == 0:
        events.insert(0, Event(_FIRST_SECONDS, "full-disk", 0.5))
    return Plan(
        seed=seed,
        workers=workers,
        dialect=dialect,
        step=step,
        descriptors=_FEW_DESCRIPTORS if few else 0,
        backlog=chance.choice((50, 65_536, 65_536)),
        seconds=length,
        actions_per_second=chance.choice((200, 400, 800)),
        clients=chance.choice((12, 24, 36)),
        events=events,
    )


def _events(chance: random.Random, names: list[str], seconds: float) -> list[Event]:
    weights = [EVENTS[name] for name in names]
    events, at = [], _FIRST_SECONDS
    while at < seconds:
        (name,) = chance.choices(names, weights)
        events.append(Event(at, name, chance.random()))
        at += chance.expovariate(1.5)
    return events

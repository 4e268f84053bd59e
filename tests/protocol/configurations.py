"""The configurations in which a section is played: all of them in the lab, some on real buses.

An axis has the values that the `run:` lines of a section give it; `*` is all of them. The choice is
the same in each run.

Needs nothing but the standard library.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TypeVar

from tests.protocol.packets import TranscriptError
from tests.protocol.transcript import SURVIVED, Section

AXES: Mapping[str, tuple[str, ...]] = {
    "event": SURVIVED,
    "workers": ("1", "2", "4"),
    "place": ("same", "other"),
    "step": ("compiled", "python"),
}
"""All values of each; `place` says whether all clients have one worker. A section that has no event
names none."""


@dataclass(frozen=True)
class Configuration:
    """One way to play a section. `row` is the number of its parameters."""

    row: int = 0
    event: str = ""
    workers: int = 1
    place: str = "same"
    step: str = "compiled"

    def __str__(self) -> str:
        words = (self.event, f"{self.workers}", self.place, self.step)
        return "-".join(word for word in words if word)


def all_of(section: Section, steps: Sequence[str]) -> list[Configuration]:
    """The full product, without what makes no difference; `steps` are those that can run here.
    TranscriptError if a value that the section names is in none of them."""
    values: dict[str, Sequence[object]] = {"row": range(len(section.rows))}
    for axis, known in AXES.items():
        if axis == "event" and axis not in section.run:
            continue
        chosen = section.run.get(axis, ("*",))
        values[axis] = known if chosen == ("*",) else chosen
        _check_known(section, axis, map(str, values[axis]), known)
    _check_known(section, "axis", section.run, AXES)
    values["workers"] = [int(str(it)) for it in values["workers"]]
    product_of_all = (
        Configuration(**dict(zip(values, chosen, strict=True)))  # type: ignore[arg-type]
        for chosen in product(*values.values())
    )
    every = [it for it in product_of_all if _makes_a_difference(it, len(section.clients))]
    for axis, named in section.run.items():
        for value in named:
            if value != "*" and not any(str(getattr(it, axis)) == value for it in every):
                where = f"{section.path}:{section.line}"
                raise TranscriptError(f"{where}: never played with {axis}={value}")
    return [it for it in every if it.step in steps]


def _check_known(section: Section, what: str, named: Iterable[str], known: Iterable[str]) -> None:
    if unknown := ", ".join(sorted(set(named) - set(known))):
        raise TranscriptError(
            f"{section.path}:{section.line}: no {what} {unknown}; there is {', '.join(known)}"
        )


def _makes_a_difference(it: Configuration, clients: int) -> bool:
    is_alone = it.workers == 1 or clients == 1
    return not (it.place == "other" and is_alone) and not (it.event == "move" and it.workers == 1)


def each_value(every: Sequence[Configuration]) -> list[Configuration]:
    """Some of these, so that each value of each axis, and each row, is in one of them."""
    chosen = _cover([(it, frozenset(vars(it).items())) for it in every])
    return sorted(chosen, key=lambda it: (it.workers, it.step, it.place, it.event, it.row))


def shared_out(
    sections: Sequence[Section], steps: Sequence[str]
) -> list[tuple[Section, Configuration]]:
    """The same for a chapter with dear events, whose sections share the configurations: each
    section, each of its rows and each event has each value of the other axes. One of `restart` and
    `resume`, which take seconds, is enough for a section."""
    every = [
        ((section, it), _shared_pairs(at, it))
        for at, section in enumerate(sections)
        for it in all_of(section, steps)
    ]
    return _cover(every)


def chosen(
    sections: Sequence[Section], steps: Sequence[str]
) -> Iterator[tuple[Section, Configuration]]:
    """How `tests/run` plays a chapter on real buses."""
    yield from shared_out([it for it in sections if "event" in it.run], steps)
    for section in sections:
        if "event" not in section.run:
            yield from ((section, it) for it in each_value(all_of(section, steps)))


_Pair = tuple[tuple[str, object], tuple[str, object]]
_It = TypeVar("_It")


def _pairs(values: Mapping[str, object]) -> frozenset[_Pair]:
    return frozenset(combinations(sorted(values.items(), key=lambda item: item[0]), 2))


def _shared_pairs(section: int, it: Configuration) -> frozenset[_Pair]:
    kind = "again" if it.event in ("restart", "resume") else it.event
    values = {**vars(it), "row": (section, it.row), "section": section, "event": kind}
    own = {pair for pair in _pairs(values) if {"row", "section"} & dict(pair).keys()}
    shared = {pair for pair in _pairs(vars(it)) if "row" not in dict(pair)}
    return frozenset(own | shared)


def _cover(every: Sequence[tuple[_It, frozenset[object]]]) -> list[_It]:
    """Always the first one of those that cover most of what is not covered yet."""
    uncovered = {case for _, cases in every for case in cases}
    chosen = []
    while uncovered:
        best, cases = max(every, key=lambda one: len(uncovered & one[1]))
        uncovered -= cases
        chosen.append(best)
    return chosen

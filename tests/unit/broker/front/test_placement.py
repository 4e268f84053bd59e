"""Where a new client is placed, by the loads of the workers."""

from typing import Any

import pytest

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.placement import Placement, WorkerLoad
from sbus.limits import Limits

ANN, BOB, EVE = 1, 2, 3


Workers = list[tuple[float, dict[int, int]]]
"""Their busy shares, and how many clients of each user they have."""
IDLE: tuple[float, dict[int, int]] = (0.0, {})
BUSY = [(0.9, {ANN: 9}), (0.8, {ANN: 1}), IDLE]
CROWDED = [(0.9, {ANN: 1, BOB: 1}), (0.6, {ANN: 5, BOB: 1}), (0.7, {BOB: 1})]
EVERYWHERE = [(0.9, {ANN: 5}), (0.8, {ANN: 5}), (0.1, {BOB: 1})]
SPREAD = {"placement": "spread"}
CASES: list[tuple[str, int, Workers, dict[str, Any], int]] = [
    ("all share a worker of an empty bus", ANN, [(0.4, {}), IDLE, IDLE], {}, 0),
    ("all share a worker of an idle bus", ANN, [(0.4, {ANN: 900}), IDLE, IDLE], {}, 0),
    ("users share it, too", ANN, [(0.4, {BOB: 900}), IDLE, IDLE], {}, 0),
    ("clients of a user come together", BOB, [(0.1, {ANN: 9}), (0.3, {BOB: 1}), IDLE], {}, 1),
    ("one is shared before another is used", EVE, [IDLE, (0.1, {ANN: 9}), IDLE], {}, 1),
    ("a busy one gets no clients", ANN, [(0.51, {ANN: 9}), IDLE], {}, 1),
    ("one is not busy yet", ANN, [(0.51, {ANN: 9}), (0.5, {BOB: 1}), IDLE], {}, 1),
    ("all are used by one user", ANN, BUSY, {}, 2),
    ("no more workers than processors", ANN, BUSY, {"processors": 2}, 1),
    ("another user does not wait for them", BOB, BUSY, {"processors": 2}, 2),
    ("one processor", ANN, [IDLE, IDLE], {"processors": 1}, 0),
    ("the least busy of all", ANN, CROWDED, {}, 1),
    ("a user leaves one worker to others", ANN, EVERYWHERE, {}, 1),
    ("who is there", BOB, EVERYWHERE, {}, 2),
    ("who is new", EVE, EVERYWHERE, {}, 2),
    ("who is alone may use all", ANN, [(0.9, {ANN: 5}), (0.8, {ANN: 5}), IDLE], {}, 2),
    ("of one worker nothing is left", BOB, [(0.9, {ANN: 5})], {}, 0),
    ("another one is available", ANN, [(0.0, {ANN: 1}), IDLE, IDLE], {"available": (1, 2)}, 1),
    ("spread: fewer of the user", ANN, [(0.0, {ANN: 2}), (0.9, {BOB: 1})], SPREAD, 1),
    ("spread: as many of all", ANN, [(0.0, {ANN: 1}), (0.0, {BOB: 1})], SPREAD, 0),
    ("the other's is available", ANN, [(0.9, {ANN: 1}), (0.0, {BOB: 1})], {"available": (1,)}, 1),
]
"""A user, the workers, and the one that is chosen for a new client."""


@pytest.mark.parametrize(
    ("uid", "workers", "options", "expected"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_a_worker_is_chosen(
    uid: int, workers: Workers, options: dict[str, Any], expected: int
) -> None:
    loads = [WorkerLoad(number, *worker) for number, worker in enumerate(workers)]
    limits = Limits(worker_busy_percent_max=50)
    how = options.get("placement", "load")
    settings = BusSettings(workers=len(workers), placement=how, limits=limits)
    placement = Placement(settings, lambda: loads, options.get("processors", 64))
    available = options.get("available", range(len(workers)))
    assert placement.choose(uid, available) == expected

"""Where a new client is placed, by the loads of the workers."""

from collections.abc import Mapping

import pytest

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.placement import Placement, WorkerLoad
from sbus.limits import Limits

ANN, BOB, EVE = 1, 2, 3


def chosen(
    uid: int,
    *workers: tuple[float, Mapping[int, int]],
    available: tuple[int, ...] | None = None,
    placement: str = "load",
    processors: int = 64,
) -> int:
    """The worker for a new client of a user; `workers` are busy shares and clients by user."""
    loads = [WorkerLoad(number, *worker) for number, worker in enumerate(workers)]
    settings = BusSettings(
        workers=len(workers), placement=placement, limits=Limits(worker_busy_percent_max=50)
    )
    numbers = range(len(workers)) if available is None else available
    return Placement(settings, lambda: loads, processors).choose(uid, numbers)


@pytest.mark.parametrize("clients", [{}, {ANN: 900}, {BOB: 900}])
def test_on_an_idle_bus_all_clients_share_a_worker(clients: Mapping[int, int]) -> None:
    assert chosen(ANN, (0.4, clients), (0.0, {}), (0.0, {})) == 0


def test_the_clients_of_a_user_come_together() -> None:
    assert chosen(BOB, (0.1, {ANN: 9}), (0.3, {BOB: 1}), (0.0, {})) == 1


def test_a_user_without_a_worker_shares_one_before_another_is_used() -> None:
    assert chosen(EVE, (0.0, {}), (0.1, {ANN: 9}), (0.0, {})) == 1


def test_a_busy_worker_gets_no_clients_while_another_is_not() -> None:
    assert chosen(ANN, (0.51, {ANN: 9}), (0.0, {})) == 1
    assert chosen(ANN, (0.51, {ANN: 9}), (0.5, {BOB: 1}), (0.0, {})) == 1


def test_no_more_workers_are_used_than_there_are_processors() -> None:
    busy: list[tuple[float, dict[int, int]]] = [(0.9, {ANN: 9}), (0.8, {ANN: 1}), (0.0, {})]
    assert chosen(ANN, *busy) == 2
    assert chosen(ANN, *busy, processors=2) == 1
    assert chosen(BOB, *busy, processors=2) == 2, "another user does not wait for them"
    assert chosen(ANN, (0.0, {}), (0.0, {}), processors=1) == 0


def test_when_all_are_busy_the_least_busy_one_is_chosen() -> None:
    assert chosen(ANN, (0.9, {ANN: 1, BOB: 1}), (0.6, {ANN: 5, BOB: 1}), (0.7, {BOB: 1})) == 1


def test_a_user_leaves_one_worker_to_others() -> None:
    everywhere = (0.9, {ANN: 5}), (0.8, {ANN: 5}), (0.1, {BOB: 1})
    assert chosen(ANN, *everywhere) == 1
    assert chosen(BOB, *everywhere) == 2
    assert chosen(EVE, *everywhere) == 2


def test_a_user_that_is_alone_may_use_all_workers() -> None:
    assert chosen(ANN, (0.9, {ANN: 5}), (0.8, {ANN: 5}), (0.0, {})) == 2


def test_of_one_worker_nothing_is_left_to_others() -> None:
    assert chosen(BOB, (0.9, {ANN: 5})) == 0


def test_only_available_workers_are_chosen() -> None:
    assert chosen(ANN, (0.0, {ANN: 1}), (0.0, {}), (0.0, {}), available=(1, 2)) == 1
    assert chosen(ANN, (0.9, {ANN: 1}), (0.0, {BOB: 1}), available=(1,)) == 1

"""How busy a worker is, from the time that it ran, waited for a processor and slept."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.load_meter import LoadMeter, busy_share
from sbus.unix.process_usage import ScheduledTime
from tests.unit.shared.memories import spare_slots

NOTHING = ScheduledTime(0.0, 0.0)


@pytest.mark.parametrize(
    ("running", "waiting", "expected"),
    [
        *((0.0, 0.0, 0.0), (0.5, 0.0, 0.5), (1.0, 0.0, 1.0)),
        *((0.2, 0.6, 0.5), (0.1, 0.9, 1.0), (0.0, 1.0, 0.0)),
        (0.4, 0.7, 1.0),  # the kernel accounted for some of it late
    ],
)
def test_waiting_for_a_processor_is_no_load(
    running: float, waiting: float, expected: float
) -> None:
    after = ScheduledTime(running, waiting)
    assert busy_share(NOTHING, after, 1.0) == pytest.approx(expected)


def test_load_that_moves_is_expected_at_its_new_worker() -> None:
    workers = [SimpleNamespace(number=number, pid=0) for number in range(2)]
    meter = LoadMeter(
        cast("Any", SimpleNamespace(workers=workers)), ClientRegistry(2, spare_slots())
    )
    meter.busy_shares = [0.8, 0.9]
    meter.expect_moved(0, 1, 0.25)
    assert meter.busy_shares == pytest.approx([0.6, 1.0])
    meter.sample()
    assert meter.busy_shares == [0.0, 0.0]

"""The promises about order, causality and subscriptions, while clients are moved.

These are tests of other modules, on buses on which random clients move to other workers.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker import (
    test_cause_and_effect,
    test_one_order,
    test_subscription_point,
)
from tests.broker.test_subscription_point import ask_whoami
from tests.support import bus
from tests.support.moves import clients_moving


@pytest.fixture(autouse=True)
def _clients_move(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Random clients of the bus are moved, at least one of them successfully."""
    moves: list[Counter[str]] = []

    @contextmanager
    def moving(on: bus.Bus) -> Iterator[None]:
        with clients_moving(on) as outcomes:
            moves.append(outcomes)
            yield

    monkeypatch.setattr(bus, "meanwhile_on", moving)
    yield
    assert [outcomes[""] > 0 for outcomes in moves] == [True]


def test_there_is_one_order(tmp_path: Path) -> None:
    test_one_order.test_all_sequences_merge_into_one(tmp_path, 4)


def test_causes_come_before_effects(tmp_path: Path) -> None:
    test_cause_and_effect.test_watchers_on_every_worker_see_questions_first(tmp_path, 4)


def test_a_subscription_takes_effect_at_one_instant(tmp_path: Path) -> None:
    test_subscription_point.test_a_barrier_makes_a_subscription_known_to_all_publishers(
        tmp_path, ask_whoami, others_listen=True
    )

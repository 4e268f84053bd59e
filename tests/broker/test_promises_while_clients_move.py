"""The promises about order, causality, subscriptions and losses, while clients are moved.

These are tests of other modules, on buses on which random clients move to other workers.
"""

import pytest

from tests.broker.test_cause_and_effect import (
    test_a_chain_of_effects_through_all_workers_arrives_in_order,
    test_the_only_watcher_sees_questions_first,
    test_watchers_on_every_worker_see_questions_first,
)
from tests.broker.test_one_order import (
    test_all_sequences_merge_into_one,
    test_subscribers_on_all_workers_receive_the_same_sequence,
)
from tests.broker.test_random_clients import test_every_client_receives_what_the_model_says
from tests.broker.test_subscription_point import (
    test_a_barrier_makes_a_subscription_known_to_all_publishers,
    test_a_client_that_left_is_no_longer_subscribed,
    test_before_and_after_a_subscription,
    test_packets_of_one_client_take_effect_one_after_the_other,
)
from tests.support import bus
from tests.support.moves import clients_moving

__all__ = [
    "test_a_barrier_makes_a_subscription_known_to_all_publishers",
    "test_a_chain_of_effects_through_all_workers_arrives_in_order",
    "test_a_client_that_left_is_no_longer_subscribed",
    "test_all_sequences_merge_into_one",
    "test_before_and_after_a_subscription",
    "test_every_client_receives_what_the_model_says",
    "test_packets_of_one_client_take_effect_one_after_the_other",
    "test_subscribers_on_all_workers_receive_the_same_sequence",
    "test_the_only_watcher_sees_questions_first",
    "test_watchers_on_every_worker_see_questions_first",
]


@pytest.fixture(autouse=True)
def _clients_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "meanwhile_on", clients_moving)

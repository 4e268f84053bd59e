"""What holds for the table of an outbox's states as a whole."""

from sbus.broker.delivery.outbox_state import TRANSITIONS, Event, State


def test_an_outbox_may_be_closed_at_any_time_and_is_never_opened_again() -> None:
    assert all(row[Event.CLOSE] is State.CLOSED for row in TRANSITIONS.values())
    assert set(TRANSITIONS[State.CLOSED].values()) == {State.CLOSED}


def test_only_a_backlog_that_waits_can_be_sent() -> None:
    sending = {state for state, row in TRANSITIONS.items() if Event.BACKLOG_SENT in row}
    assert sending == {State.FULL, State.NO_MEMORY}


def test_messages_are_sent_at_once_again_only_after_the_whole_backlog() -> None:
    for state in (State.FULL, State.NO_MEMORY):
        flowing = {event for event, after in TRANSITIONS[state].items() if after is State.FLOWING}
        assert flowing == {Event.BACKLOG_SENT}

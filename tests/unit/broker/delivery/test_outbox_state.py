"""What holds for the table of an outbox's states as a whole."""

from sbus.broker.delivery.outbox_state import TRANSITIONS, Event, State


def test_an_outbox_may_be_closed_at_any_time_and_is_never_opened_again() -> None:
    assert all(row[Event.CLOSE] is State.CLOSED for row in TRANSITIONS.values())
    assert set(TRANSITIONS[State.CLOSED].values()) == {State.CLOSED}


def test_a_writer_ends_only_while_nothing_waits() -> None:
    ending = {state for state, row in TRANSITIONS.items() if Event.WRITER_ENDED in row}
    assert ending == {State.DRAINED, State.CLOSED}


def test_messages_are_sent_at_once_again_only_after_the_whole_backlog() -> None:
    for state in (State.FULL, State.NO_MEMORY):
        flowing = {event for event, after in TRANSITIONS[state].items() if after is State.DRAINED}
        assert flowing == {Event.BACKLOG_SENT}

"""What a client has chosen and what was counted of it, as its session has it and as a record."""

from sbus.broker.ipc.client_record import ClientState
from sbus.broker.worker.session import Session


def state_of(session: Session) -> ClientState:
    outbox = session.outbox
    return ClientState(
        echo=session.echo,
        wants_notices=outbox.wants_notices,
        wants_sender=outbox.wants_sender,
        flood_control=outbox.flood_control,
        messages_in=session.messages_in,
        bytes_in=session.bytes_in,
        refused=session.refused,
        accepted=outbox.accepted,
        delivered_bytes=outbox.delivered_bytes,
        dropped=outbox.dropped,
        replaced=outbox.replaced,
        name=session.name,
        will=session.will,
    )


def restore_state(session: Session, state: ClientState) -> None:
    """Make a session that another worker's client arrives at as it was there."""
    outbox = session.outbox
    session.echo = state.echo
    session.messages_in = state.messages_in
    session.bytes_in = state.bytes_in
    session.refused = state.refused
    outbox.wants_notices = state.wants_notices
    outbox.wants_sender = state.wants_sender
    outbox.accepted = state.accepted
    outbox.delivered_bytes = state.delivered_bytes
    outbox.dropped.update(state.dropped)
    outbox.replaced = state.replaced
    session.set_name(state.name, state.will)
    outbox.arrive(state.flood_control)
    session.save_settings()
    session.set_counted(True)

"""Standing by: a worker waits for its first command before it begins to serve.

A worker shares its memory with the fork server until it changes it, and the event loop alone
changes some megabytes. So until the front has something for it to do, a worker only waits: it has
no event loop, is not alive in the shared memory, and has read no subscriptions.
"""

import select
import socket
from collections.abc import Callable
from contextlib import suppress

from sbus.broker.ipc.worker_link import encode_packet, send_event
from sbus.broker.ipc.worker_protocol import EndSilently, Quiesce, Stop, WorkerQuiesced
from sbus.protocol.codes import END_TEXTS

_QUIESCE = encode_packet(Quiesce())
_STOPS = {encode_packet(EndSilently()), *(encode_packet(Stop(code)) for code in END_TEXTS)}
_BYTES_COMPARED = max(map(len, (_QUIESCE, *_STOPS))) + 1
_ENDED = b""


def stand_by(
    link_socket: socket.socket, record_heartbeat: Callable[[], None], heartbeat_seconds: float
) -> bool:
    """Wait until there is a command to carry out, and leave it on the link; False when the front
    has ended or stops the bus before that."""
    poll = select.poll()
    poll.register(link_socket, select.POLLIN)
    while True:
        while not poll.poll(heartbeat_seconds * 1_000):
            record_heartbeat()
        packet = _ENDED
        with suppress(ConnectionResetError):
            packet = link_socket.recv(_BYTES_COMPARED, socket.MSG_PEEK)
        if packet == _ENDED or packet in _STOPS:
            return False
        if packet != _QUIESCE:
            return True
        link_socket.recv(_BYTES_COMPARED)
        send_event(link_socket, WorkerQuiesced())

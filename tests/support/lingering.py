"""TCP sockets that keep the process waiting that closes them last."""

import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sbus.bench.attacks.programs import lingering_pair


def send_with_descriptors(
    through: socket.socket, packet: bytes, socks: Sequence[socket.socket]
) -> None:
    """Send a packet with the descriptors of these sockets. Raises OSError."""
    rights = array("i", [sock.fileno() for sock in socks])
    through.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


@contextmanager
def packets_that_linger(through: socket.socket, *packets: bytes) -> Iterator[None]:
    """Send packets with the only descriptors of sockets that linger during the block."""
    pairs = [lingering_pair() for _ in packets]
    for packet, (sock, _) in zip(packets, pairs, strict=True):
        send_with_descriptors(through, packet, [sock])
        sock.close()
    try:
        yield
    finally:
        for _, peer in pairs:
            peer.close()

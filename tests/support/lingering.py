"""TCP sockets that keep the process waiting that closes them last."""

import socket
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_LINGER = struct.pack("ii", 1, 3600)


def lingering_pair() -> tuple[socket.socket, socket.socket]:
    """A socket with unsent data that lingers for an hour while the other one is open."""
    sock = socket.socket(socket.AF_INET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock.connect(server.getsockname())
        peer, _ = server.accept()
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 20))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    return sock, peer


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

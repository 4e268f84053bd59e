"""Packets that were peeked at are taken, whatever has become of the other end."""

import socket

from sbus.client.packet_reader import PeekingReader, begin_peeking, take_peeked


def test_packets_are_taken_from_a_connection_that_was_reset() -> None:
    bus, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with bus, sock:
        sock.setblocking(False)
        begin_peeking(sock)
        for packet in (b"first", b"second", b"third"):
            bus.send(packet)
        assert PeekingReader(100).read(sock, 2, 1_000) == ([b"first", b"second"], None)
        sock.send(b"what the bus will not read")
        bus.close()
        take_peeked(sock)
        assert sock.recv(100) == b"third"

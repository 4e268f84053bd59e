"""Waits of the kernel are short while they are interrupted, and are not afterwards."""

import select
import signal
import socket
import time

from sbus.bench.attacks.programs import lingering_pair
from sbus.unix.fd_passing import has_descriptors
from sbus.unix.interrupted_waits import INTERVAL_SECONDS, interrupt_waits
from tests.support.lingering import packets_that_linger

SOON_SECONDS = 1.0


def test_closing_a_socket_that_lingers_is_short() -> None:
    sock, peer = lingering_pair()
    with peer:
        began_at = time.monotonic()
        with interrupt_waits():
            sock.close()
        assert INTERVAL_SECONDS / 2 < time.monotonic() - began_at < SOON_SECONDS


def test_many_sockets_in_one_packet_delay_it_once() -> None:
    ours, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inner, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, client, sender, packets_that_linger(sender, *[b"x"] * 20):
        socket.send_fds(client, [b"all"], [inner.fileno()])
        inner.close()
        began_at = time.monotonic()
        with interrupt_waits():
            assert ours.recv(10) == b"all"
        assert time.monotonic() - began_at < SOON_SECONDS


def test_looking_at_a_packet_closes_nothing() -> None:
    ours, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, client, packets_that_linger(client, b"x"):
        client.send(b"y")
        for _ in range(3):
            assert has_descriptors(ours)
        with interrupt_waits():
            assert ours.recv(10) == b"x"
        assert not has_descriptors(ours)


def test_nothing_is_interrupted_afterwards() -> None:
    with interrupt_waits():
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.sigtimedwait([signal.SIGALRM], 5 * INTERVAL_SECONDS) is None
    assert select.select([], [], [], 5 * INTERVAL_SECONDS) == ([], [], [])

"""Standing by: until when a worker waits, and what it leaves on the link."""

import os
import socket
from collections.abc import Iterator

import pytest

from sbus.broker.ipc.worker_link import encode_packet
from sbus.broker.ipc.worker_protocol import AdoptClient, Quiesce, Stop, WorkerQuiesced
from sbus.broker.worker.standby import stand_by
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import receive_owning_fds, send_borrowing_fds

PACKET_BYTES_MAX = 4_096
RARELY_SECONDS = 60.0
OFTEN_SECONDS = 0.001
ADOPT = encode_packet(AdoptClient(7, Credentials(gid=1, uid=2, pid=3), 4, b"some rules"))

Link = tuple[socket.socket, socket.socket]


@pytest.fixture
def link() -> Iterator[Link]:
    """The front's end and the worker's."""
    front, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with front, worker:
        yield front, worker


def no_heartbeat() -> None:
    pytest.fail("it waited, although there was something on the link")


def test_a_command_ends_it_and_stays_on_the_link_with_its_descriptor(link: Link) -> None:
    front, worker = link
    with open(os.devnull, "rb") as file:
        send_borrowing_fds(front, ADOPT, [file.fileno()])
    assert stand_by(worker, no_heartbeat, RARELY_SECONDS)
    packet, fds = receive_owning_fds(worker, PACKET_BYTES_MAX)
    assert packet == ADOPT
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in fds] == [os.devnull]
    for fd in fds:
        os.close(fd)


def test_heartbeats_are_recorded_until_there_is_a_command(link: Link) -> None:
    front, worker = link
    recorded = 0

    def record_heartbeat() -> None:
        nonlocal recorded
        recorded += 1
        if recorded == 3:
            front.send(ADOPT)

    assert stand_by(worker, record_heartbeat, OFTEN_SECONDS)
    assert recorded == 3


def test_a_bus_that_stops_needs_no_event_loop_for_it(link: Link) -> None:
    front, worker = link
    front.send(encode_packet(Quiesce()))
    front.send(encode_packet(Stop()))
    assert not stand_by(worker, no_heartbeat, RARELY_SECONDS)
    assert front.recv(PACKET_BYTES_MAX) == encode_packet(WorkerQuiesced())


def test_the_end_of_the_front_ends_it(link: Link) -> None:
    front, worker = link
    front.close()
    assert not stand_by(worker, no_heartbeat, RARELY_SECONDS)


def test_the_end_of_a_front_that_left_packets_unread_ends_it(link: Link) -> None:
    front, worker = link
    worker.send(b"an event")
    front.close()
    assert not stand_by(worker, no_heartbeat, RARELY_SECONDS)

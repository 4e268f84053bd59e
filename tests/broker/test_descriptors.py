"""Descriptors that a client attaches to packets are neither passed on nor kept: the kernel refuses
such packets, or the bus drops the descriptors."""

import errno
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.processes import (
    clients_on_each,
    descriptors,
    descriptors_at_rest,
    several_clients,
    stopped,
    worker_pids,
)
from tests.support.raw_client import RawClient

SO_PASSRIGHTS = 83
DROP = "--drop-descriptors"
WAIT_MS_MAX = 10_000


def send_with_descriptors(client: RawClient, packet: bytes, fds: list[int]) -> None:
    client.sock.settimeout(WAIT_MS_MAX / 1_000)
    socket.send_fds(client.sock, [packet], fds)


# -- refused ---------------------------------------------------------------------------------------
@pytest.fixture
def _kernel_can_refuse() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError:
            pytest.skip("refusing descriptors needs Linux 6.16")


@pytest.mark.usefixtures("_kernel_can_refuse")
def test_a_packet_with_descriptors_is_refused_to_its_sender_only(bus: Bus) -> None:
    with bus.connect() as sender, bus.connect() as receiver:
        receiver.sub(b"k")
        assert receiver.sync() == []
        with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
            send_with_descriptors(sender, b"MSG k\0with", [sender.fileno()])
        sender.pub(b"k", b"without")
        assert sender.sync() == []
        assert receiver.sync() == [b"MSG k\0without"]


@pytest.mark.usefixtures("_kernel_can_refuse")
@pytest.mark.parametrize("options", [(), (DROP,)])
def test_an_administrators_descriptors_are_refused(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    with (
        running_bus(tmp_path, *options) as bus,
        RawClient(f"{bus.address}.admin") as admin,
        pytest.raises(PermissionError),
    ):
        send_with_descriptors(admin, b"{}", [admin.fileno()])


# -- dropped ---------------------------------------------------------------------------------------
@pytest.fixture
def dropping_bus(tmp_path: Path) -> Iterator[Bus]:
    with running_bus(tmp_path, DROP) as running:
        yield running


def subscribed(client: RawClient) -> RawClient:
    client.sub(b"k")
    client.whoami()
    return client


def test_attached_descriptors_are_dropped_and_the_packet_is_served(tmp_path: Path) -> None:
    with running_bus(tmp_path, DROP) as bus, clients_on_each(bus, 2) as ((client,), (other,)):
        subscribed(other)
        subscribed(client)
        before = descriptors_at_rest(bus)
        with open(os.devnull, "rb") as null:
            for number in range(500):
                attached = [null.fileno()] * (1 + number % 5)
                send_with_descriptors(client, b"MSG k\0%d" % number, attached)
                send_with_descriptors(client, b"SUB k", attached)
                send_with_descriptors(client, b"CMSG unknown", attached)
        expected = [b"MSG k\0%d" % number for number in range(500)]
        assert client.sync() == expected
        for message in expected:
            packet, ancillary, flags, _ = other.sock.recvmsg(100, 1_000)
            assert (packet, ancillary, flags & socket.MSG_CTRUNC) == (message, [], 0)
        assert descriptors(bus) == before


@pytest.mark.parametrize("packet", [b"MSG k\0", b"MSG nobody\0", b"CMSG echo/on", b"SUB a"])
def test_an_attached_descriptor_is_closed(dropping_bus: Bus, packet: bytes) -> None:
    """The end of the pipe is at hand as soon as its writer is closed here."""
    with several_clients(dropping_bus, 1) as (client,):
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as pipe:
            send_with_descriptors(client, packet, [write_end])
            os.close(write_end)
            client.whoami()
            assert select.select([pipe], [], [], 0)[0], "somebody still holds it open"
            assert pipe.read(1) == b""


def test_a_descriptor_with_a_bad_packet_is_closed(tmp_path: Path) -> None:
    """So are those of the packets behind it, which are not read any more."""
    with running_bus(tmp_path, DROP, workers=1) as bus, several_clients(bus, 1) as (client,):
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as pipe:
            with stopped(worker_pids(bus)[0]):
                for _ in range(3):
                    send_with_descriptors(client, b"nonsense", [write_end])
            os.close(write_end)
            assert client.receive() == b""
            assert select.select([pipe], [], [], WAIT_MS_MAX / 1_000)[0]
            assert pipe.read(1) == b""

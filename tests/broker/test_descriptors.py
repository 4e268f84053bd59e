"""Descriptors that a client attaches to packets are neither passed on nor kept: the kernel refuses
such packets, or the bus disconnects the client, and its closer drops the descriptors."""

import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.bus import Bus, running_bus
from tests.support.processes import (
    closers,
    several_clients,
    stopped,
    worker_pids,
)
from tests.support.raw_client import RawClient

SO_PASSRIGHTS = 83
DISCONNECT = "--disconnect-descriptors"
WAIT_MS_MAX = 10_000
REASON = b"CMSG !/error\0has-descriptors descriptors may not be attached to packets"


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
            pytest.skip("needs Linux 6.16 to refuse descriptors")


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


# -- disconnected ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def disconnecting_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with running_bus(tmp_path_factory.mktemp("bus"), DISCONNECT, workers=1) as running:
        yield running


@pytest.mark.usefixtures("_kernel_can_refuse")
def test_an_administrators_descriptors_are_refused(disconnecting_bus: Bus) -> None:
    with (
        RawClient(f"{disconnecting_bus.address}.admin") as admin,
        pytest.raises(PermissionError),
    ):
        send_with_descriptors(admin, b"{}", [admin.fileno()])


def test_a_packet_with_descriptors_disconnects_its_sender_only(disconnecting_bus: Bus) -> None:
    """What came before it is done, and nothing behind it."""
    with several_clients(disconnecting_bus, 2) as (sender, receiver):
        receiver.sub(b"k")
        assert receiver.sync() == []
        sender.send(b"CMSG !/notices/on")
        assert sender.sync() == []
        with stopped(worker_pids(disconnecting_bus)[0]):
            sender.pub(b"k", b"before")
            send_with_descriptors(sender, b"MSG k\0with", [sender.sock.fileno()])
        assert all_packets(sender) == [REASON]
        assert receiver.sync() == [b"MSG k\0before"]


def all_packets(client: RawClient) -> list[bytes]:
    """All to the end of the connection. A reset may be reported before what was sent."""
    packets: list[bytes] = []
    while True:
        with suppress(ConnectionResetError):
            packet = client.receive()
            if not packet:
                return packets
            packets.append(packet)


@pytest.mark.parametrize("packet", [b"MSG k\0", b"CMSG echo/on", b"SUB a", b"", b"nonsense"])
def test_an_attached_descriptor_is_closed(disconnecting_bus: Bus, packet: bytes) -> None:
    """So are those of the packets behind it."""
    with several_clients(disconnecting_bus, 1) as (client,):
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as pipe:
            with stopped(worker_pids(disconnecting_bus)[0]):
                for _ in range(3):
                    send_with_descriptors(client, packet, [write_end])
            os.close(write_end)
            assert select.select([pipe], [], [], WAIT_MS_MAX / 1_000)[0]
            assert pipe.read(1) == b""


@pytest.mark.usefixtures("_kernel_can_refuse")
def test_a_bus_whose_clients_can_send_none_has_no_closer(bus: Bus) -> None:
    with several_clients(bus, 1):
        assert closers(bus) == []

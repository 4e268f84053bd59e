"""Users attach the last descriptors of sockets that linger, which delays the process that closes
them. Nobody else waits for that, and the bus ends when it is told to."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.hostile.lingering import (
    VICTIM,
    Attacker,
    attackers,
    packets_taken_during,
)
from tests.support.admin import administer
from tests.support.bus import STOP_SECONDS_MAX, Bus, bus_of, running_bus
from tests.support.processes import is_replaced, worker_pids
from tests.support.raw_client import PACKET_BYTES_MAX
from tests.support.threads import wait_until
from tests.support.users import directory_for_everybody, needs_root

pytestmark = needs_root

SO_PASSRIGHTS = 83
ENDING_SOON = "--limit=stop_seconds_max=0.5"

MESSAGE = b"MSG attack\0"


def kernel_can_refuse() -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError:
            return False
        return True


refused = pytest.param(
    (),
    marks=pytest.mark.skipif(
        not kernel_can_refuse(), reason="needs Linux 6.16 to refuse descriptors"
    ),
    id="refused",
)
DISCONNECTING = "--disconnect-descriptors"
disconnected = pytest.param((DISCONNECTING,), id="disconnected")
both_ways = pytest.mark.parametrize("options", [refused, disconnected])


@contextmanager
def open_bus(*options: str) -> Iterator[Bus]:
    with directory_for_everybody() as directory, running_bus(directory, "-o", *options) as bus:
        yield bus


def send_and_stay(attacker: Attacker) -> None:
    """Connections send such packets, and stay for what comes of it."""
    with ExitStack() as stack:
        clients = [stack.enter_context(attacker.connect()) for _ in range(6)]
        for client in clients:
            with suppress(OSError):
                attacker.send(client, MESSAGE)
                attacker.send(client, MESSAGE, sockets=20)
        for client in clients:
            with suppress(ConnectionResetError):
                if attacker.taken:
                    client.receive_until_closed()
                else:
                    client.whoami()


def send_and_leave(attacker: Attacker) -> None:
    """Connections end while such packets are unread."""
    for _ in range(10):
        with suppress(OSError), attacker.connect() as client:
            for _ in range(4):
                attacker.send(client, MESSAGE)


def misbehave(attacker: Attacker) -> None:
    """Connections are ended by the bus while such packets are unread."""
    for _ in range(10):
        with suppress(OSError), attacker.connect() as client:
            client.send(MESSAGE + bytes(PACKET_BYTES_MAX))
            for _ in range(4):
                attacker.send(client, MESSAGE)
            client.receive_until_closed()


def connect_too_often(attacker: Attacker) -> None:
    """Connections send such packets before they are refused."""
    with ExitStack() as stack:
        for _ in range(20):
            with suppress(OSError):
                client = stack.enter_context(attacker.connect())
                attacker.send(client, MESSAGE)
                attacker.send(client, MESSAGE)


@both_ways
def test_nobody_else_waits(options: tuple[str, ...]) -> None:
    with open_bus(*options) as bus:
        for attack in (send_and_stay, send_and_leave, misbehave):
            taken = packets_taken_during(bus, attack)
            assert bool(taken) == bool(options)


@both_ways
def test_nobody_waits_for_a_user_who_is_kept_out(tmp_path: Path, options: tuple[str, ...]) -> None:
    arguments = ("-f", "-a", "/dev/unix/abstract", "-u", str(VICTIM), "--admin-address", "none")
    with bus_of(tmp_path, *arguments, *options) as bus:
        taken = packets_taken_during(bus, connect_too_often)
        assert bool(taken) == bool(options)


@both_ways
def test_connections_from_before_the_start_delay_nobody(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A service manager listens before it starts the bus."""
    with (
        directory_for_everybody() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
        ExitStack() as stack,
    ):
        path = directory / "passed"
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen(100)
        processes = stack.enter_context(attackers(str(path), connect_too_often))
        taken = sum(process.packets_taken() for process in processes)
        assert taken
        arguments = ("-fa", f"/dev/fd/{listener.fileno()}", *options)
        fds = [listener.fileno()]
        with bus_of(tmp_path, *arguments, address=str(path), pass_fds=fds) as bus:
            packets_taken_during(bus, send_and_leave)


def test_a_dead_workers_clients_delay_nobody() -> None:
    """The front ends the connections of a worker that died, with what it has not read."""
    with open_bus(DISCONNECTING) as bus, ExitStack() as stack:
        pid = worker_pids(bus)[0]
        os.kill(pid, signal.SIGSTOP)
        processes = stack.enter_context(attackers(bus.address, send_and_leave))
        wait_until(lambda: all(it.is_done() for it in processes), "the packets are sent")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_replaced(bus, 0, pid), "the worker is replaced")
        packets_taken_during(bus, send_and_leave)


def test_the_bus_ends_with_such_packets_unread() -> None:
    with open_bus(DISCONNECTING, ENDING_SOON) as bus, ExitStack() as stack:
        for pid in worker_pids(bus).values():
            os.kill(pid, signal.SIGSTOP)
        processes = stack.enter_context(attackers(bus.address, send_and_leave))
        wait_until(lambda: all(it.is_done() for it in processes), "the packets are sent")
        bus.process.send_signal(signal.SIGTERM)
        assert bus.process.wait(STOP_SECONDS_MAX) == 0


def test_the_bus_ends_with_connections_that_it_has_not_accepted() -> None:
    with open_bus(DISCONNECTING, ENDING_SOON) as bus, ExitStack() as stack:
        stack.enter_context(bus.connect()).whoami()
        with administer(bus) as admin:
            admin.ask("drain")
        processes = stack.enter_context(attackers(bus.address, connect_too_often))
        wait_until(lambda: all(it.is_done() for it in processes), "the packets are sent")
        bus.process.send_signal(signal.SIGTERM)
        assert bus.process.wait(STOP_SECONDS_MAX) == 0

"""All processes of a bus end, and the next one goes on with the clients that the service manager
has kept."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sbus.shared.shared_memory import LAYOUT_VERSION
from tests.support.admin import administer, own_user
from tests.support.bus import RUN_AS_SELF, Bus, wait_until_gone
from tests.support.descriptor_store import StoringManager, needs_refusal, storing_manager
from tests.support.flood import LOST
from tests.support.processes import fork_server_pid, kill_at_once, several_clients
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile, wait_until
from tests.support.upgrades import serving_pid, upgrade
from tests.support.users import STRANGER, directory_for_everybody, effective_user, needs_root

pytestmark = needs_refusal
END_SECONDS_MAX = 60.0
FEW = 4
COUNTED_TWICE_MAX = FEW + 1 + 1 + 1 + FEW
"""At a death, for each publisher: messages that were processed and count as lost, a reply that was
sent and does, a packet that does not exist, the one delivery that was under way, and a `!/lost`
that is repeated."""
PACKETS_LOST = b"CMSG !/error\0packets-lost "
LAYOUT_WORD_BYTES = 8


def kill_front(bus: Bus) -> None:
    bus.process.kill()


def kill_fork_server(bus: Bus) -> None:
    os.kill(fork_server_pid(bus), signal.SIGKILL)


def kill_all(bus: Bus) -> None:
    kill_at_once(bus.pids())


def restart(bus: Bus) -> None:
    bus.process.send_signal(signal.SIGUSR1)


_STOPPED_EARLY = """
import os, signal
from sbus.cli.sbusd import start
from sbus.cli.sbusd.command import main
class StopRequest(start.StopRequest):
    def __init__(self):
        super().__init__()
        os.kill(os.getpid(), signal.SIGTERM)
start.StopRequest = StopRequest
main()
"""
STOPPED_EARLY = (sys.executable, "-P", "-c", _STOPPED_EARLY, *RUN_AS_SELF)
"""A bus that is told to stop before it has read anything."""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[StoringManager]:
    with storing_manager(tmp_path) as made:
        yield made


def end_bus(bus: Bus, end: Callable[[Bus], None]) -> None:
    pids = bus.pids()
    end(bus)
    bus.process.wait(END_SECONDS_MAX)
    for pid in pids:
        assert wait_until_gone(pid, END_SECONDS_MAX)


# -- what clients keep -----------------------------------------------------------------------------
class Traffic:
    """A publisher that numbers its messages, and a subscriber that checks them. Both want notices.
    The publisher waits after every few for a reply, so that no more are under way."""

    def __init__(self, publisher: RawClient, subscriber: RawClient, key: bytes) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._key = key
        self._newest = -1
        self._requests = 0
        self.sent = self.received = self.told = 0
        for client in (publisher, subscriber):
            client.control(b"!/notices/on")
            client.sync()
        subscriber.sub(key)
        subscriber.sync()

    def publish(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for _ in range(FEW):
                self._publisher.pub(self._key, b"%d" % self.sent)
                self.sent += 1
            self._wait_until_processed()

    def _wait_until_processed(self) -> None:
        """Ask again after a notice: the request may have been lost."""
        while True:
            self._requests += 1
            reply = b"!/sync\0%d" % self._requests
            self._publisher.control(reply)
            while (packet := self._publisher.receive(60.0)) != b"CMSG " + reply:
                if packet.startswith(PACKETS_LOST):
                    self.told += int(packet.removeprefix(PACKETS_LOST).split()[0])
                    break
                assert packet.startswith(b"CMSG !/sync\0"), packet
            else:
                return

    def receive(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                self._take(self._subscriber.receive(timeout_s=0.1))

    def receive_the_rest(self) -> None:
        for packet in self._subscriber.sync():
            self._take(packet)

    def _take(self, packet: bytes) -> None:
        if packet.startswith(LOST):
            self.told += int(packet.removeprefix(LOST))
            return
        number = int(packet.removeprefix(b"MSG " + self._key + b"\0"))
        assert number > self._newest, f"{number} after {self._newest}"
        self._newest = number
        self.received += 1

    def wait_until_flowing(self) -> None:
        before = self.received
        wait_until(lambda: self.received > before, "messages flow")


def test_every_message_arrives_in_order_or_is_told_to_be_lost(manager: StoringManager) -> None:
    """But for what was under way in the instant of a death, which may count as lost though it was
    not."""
    ways = [kill_all, kill_front, restart, kill_fork_server]
    with ExitStack() as stack:
        bus = stack.enter_context(manager.bus())
        clients = stack.enter_context(several_clients(bus, 6))
        flows = [Traffic(clients[at], clients[at + 1], b"k%d" % at) for at in (0, 2, 4)]
        manager.wait_until_stored(6)
        with meanwhile(*(flow.publish for flow in flows), *(flow.receive for flow in flows)):
            for end in ways:
                for flow in flows:
                    flow.wait_until_flowing()
                end_bus(bus, end)
                bus = stack.enter_context(manager.bus())
                wait_until(lambda: not manager.next(0), "nothing is left to be stored")
        for flow in flows:
            flow.receive_the_rest()
            assert 0 <= flow.received + flow.told - flow.sent <= COUNTED_TWICE_MAX * len(ways)


def test_another_number_of_workers_serves_them(manager: StoringManager) -> None:
    """First as many as before, and then the new program takes over from itself."""
    with ExitStack() as stack:
        with manager.bus() as bus:
            clients = stack.enter_context(several_clients(bus, 4))
            for client in clients:
                client.sub(b"k")
                client.sync()
            manager.wait_until_stored(4)
            end_bus(bus, kill_all)
        bus = stack.enter_context(manager.bus(workers=3))
        bus.process.wait(END_SECONDS_MAX)
        pid = serving_pid(bus)
        try:
            with administer(bus) as admin:
                assert len(admin.ask("workers")["workers"]) == 3
            clients[0].pub(b"k", b"")
            clients[0].sync()
            for client in clients[1:]:
                assert client.sync() == [b"MSG k\0"]
        finally:
            os.kill(pid, signal.SIGTERM)
            assert wait_until_gone(pid, END_SECONDS_MAX)


def upgrade_stored(bus: Bus, manager: StoringManager) -> None:
    """Return when the store has the memory of the new bus, and not that of the old one."""
    stored = len(manager.stored)
    (before,) = (name for name in manager.stored if name.startswith("@m"))
    upgrade(bus)
    while before in manager.stored or len(manager.stored) < stored:
        assert manager.next(), "the new memory is not stored"


def kill_serving(bus: Bus) -> None:
    pid = serving_pid(bus)
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid, END_SECONDS_MAX)


def test_no_connection_gets_a_number_from_before_an_upgrade(manager: StoringManager) -> None:
    """The last one has left when another program takes over. The store has the memory of the new
    bus."""
    with ExitStack() as stack:
        with manager.bus() as bus:
            *clients, last = stack.enter_context(several_clients(bus, 3))
            last.close()
            with administer(bus) as admin:
                wait_until(lambda: len(admin.ask("clients")["clients"]) == 2, "it has left")
            manager.wait_until_stored(2)
            upgrade_stored(bus, manager)
            clients[0].sub(b"k")
            clients[0].sync()
            kill_serving(bus)
        bus = stack.enter_context(manager.bus())
        with bus.connect() as new, administer(bus) as admin:
            new.pub(b"k", b"")
            assert clients[0].receive() == b"MSG k\0"
            numbers = [listed["client"] for listed in admin.ask("clients")["clients"]]
        assert numbers == [1, 2, 4]


# -- what is not kept ------------------------------------------------------------------------------
@needs_root
def test_users_keep_their_ids_and_leave_each_other_places() -> None:
    """A place that becomes free is for the next of its user."""
    with ExitStack() as stack:
        directory = stack.enter_context(directory_for_everybody())
        manager = stack.enter_context(storing_manager(directory, stored_max=6))
        with manager.bus("--others") as bus:
            own = [stack.enter_context(bus.connect()) for _ in range(4)]
            manager.wait_until_stored(2)
            with effective_user(STRANGER):
                other = stack.enter_context(bus.connect())
            identity = other.whoami()
            manager.wait_until_stored(3)
            with administer(bus) as admin:
                assert admin.ask("stats")["stored_clients"] == 3
            own[0].close()
            while "@3" not in manager.stored:
                assert manager.next(), "the next client is not stored"
            end_bus(bus, kill_all)
        assert own[3].receive() == b""
        bus = stack.enter_context(manager.bus("--others"))
        assert other.whoami() == identity
        for client in own[1:3]:
            assert client.whoami()
        with administer(bus) as admin:
            listed = [(one["client"], one["uid"]) for one in admin.ask("clients")["clients"]]
        assert listed == [(2, os.geteuid()), (3, os.geteuid()), (5, STRANGER)]


def test_a_client_whose_connection_was_not_kept_is_lost_alone(manager: StoringManager) -> None:
    """Also a new client, which is not kept."""
    with ExitStack() as stack:
        with manager.bus() as bus:
            clients = stack.enter_context(several_clients(bus, 4))
            for client in clients:
                client.sub(b"k")
                client.sync()
            manager.wait_until_stored(4)
            (new,) = stack.enter_context(several_clients(bus, 1))
            end_bus(bus, kill_all)
        assert new.receive() == b""
        (lost,) = manager.stored.pop("@2")
        os.close(lost)
        clients[2].close()
        bus = stack.enter_context(manager.bus())
        assert clients[1].receive() == b""
        clients[0].pub(b"k", b"")
        assert clients[0].receive() == clients[3].receive() == b"MSG k\0"
        assert "clients: 2, connections that ended meanwhile: 3" in bus.stderr_text()
        with administer(bus) as admin:
            assert own_user(admin)["subscriptions"] == 2


def terminate(bus: Bus) -> None:
    bus.process.terminate()


@pytest.mark.parametrize("while_it_starts", [False, True])
def test_a_stop_tells_clients_and_keeps_nothing(
    manager: StoringManager, while_it_starts: bool
) -> None:
    with ExitStack() as stack:
        with manager.bus() as bus:
            kicked, client = stack.enter_context(several_clients(bus, 2))
            client.control(b"!/notices/on")
            client.sync()
            manager.wait_until_stored(2)
            with administer(bus) as admin:
                admin.ask("kick", client=1)
            assert kicked.receive_until_closed() == []
            manager.drop_ended()
            assert "@1" not in manager.stored
            end_bus(bus, kill_all if while_it_starts else terminate)
        if while_it_starts:
            assert manager.run_to_end(command=STOPPED_EARLY) == 0
        (last,) = client.receive_until_closed()
        assert last.startswith(b"CMSG !/error\0stopping ")
        manager.discard()
        manager.drop_ended()
        assert not manager.stored
        stack.enter_context(manager.bus())


def test_a_bus_that_ends_with_its_last_client_does_so_when_that_left_meanwhile(
    manager: StoringManager,
) -> None:
    with manager.bus("-c") as bus, several_clients(bus, 1):
        manager.wait_until_stored(1)
        end_bus(bus, kill_all)
    assert manager.run_to_end("-c") == 0


# -- what cannot be gone on with -------------------------------------------------------------------
def write_layout(memory: int, version: int) -> None:
    (word,) = memoryview(os.pread(memory, LAYOUT_WORD_BYTES, LAYOUT_WORD_BYTES)).cast("Q")
    spoilt = (word - LAYOUT_VERSION + version).to_bytes(LAYOUT_WORD_BYTES, "little")
    os.pwrite(memory, spoilt, LAYOUT_WORD_BYTES)


def stored_memory(manager: StoringManager) -> int:
    (memory,) = (fds[0] for name, fds in manager.stored.items() if name.startswith("@m"))
    return memory


def lose_memory(manager: StoringManager) -> None:
    for name in [name for name in manager.stored if name.startswith("@m")]:
        os.close(manager.stored.pop(name)[0])


OTHER_LAYOUT = LAYOUT_VERSION + 1
UNUSABLE: list[tuple[Callable[[StoringManager], None], tuple[str, ...], str]] = [
    (lambda it: os.ftruncate(stored_memory(it), 4096), (), "the bus begins anew"),
    (lose_memory, (), ""),
    (
        lambda it: write_layout(stored_memory(it), OTHER_LAYOUT),
        (),
        f"its memory has layout {OTHER_LAYOUT}",
    ),
    # Its patterns would mean something else.
    (lambda _: None, ("--dialect", "dot"), "the configuration has another dialect now"),
]
"""What becomes of a memory, the options of the next bus, and what that says."""


def test_a_memory_that_cannot_be_gone_on_with_is_not_used(manager: StoringManager) -> None:
    """Connections are ended, and the next bus serves others."""
    with ExitStack() as stack:
        bus = stack.enter_context(manager.bus())
        for spoil, options, said in UNUSABLE:
            (client,) = stack.enter_context(several_clients(bus, 1))
            manager.wait_until_stored(1)
            end_bus(bus, kill_all)
            spoil(manager)
            bus = stack.enter_context(manager.bus(*options))
            assert client.receive() == b""
            assert said in bus.stderr_text()
            manager.drop_ended()


def test_a_memory_with_which_buses_keep_failing_is_used_no_more(manager: StoringManager) -> None:
    with ExitStack() as stack:
        with manager.bus() as bus:
            (client,) = stack.enter_context(several_clients(bus, 1))
            manager.wait_until_stored(1)
            end_bus(bus, kill_all)
        for _ in range(3):
            with manager.bus() as bus:
                assert client.whoami()
                end_bus(bus, kill_all)
        bus = stack.enter_context(manager.bus())
        assert client.receive() == b""
        assert "3 buses have failed with it" in bus.stderr_text()

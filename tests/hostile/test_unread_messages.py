"""Attack: many clients that do not read make the kernel keep messages for them.

The bus keeps none here, so what a client can read afterwards is what the kernel kept for it.
"""

import select
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from sbus.limits import Limits
from sbus.unix.send_buffer import large_buffer_bytes, small_buffer_bytes
from tests.support.admin import administer, own_user
from tests.support.bus import Bus, running_bus
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until
from tests.support.users import STRANGER, directory_for_everybody, effective_user, needs_root

CLIENTS = 200
MESSAGES = 700
MESSAGE = b"MSG flood\0" + bytes(100)
KERNEL_BYTES = 768
"""What the kernel takes for one message."""
QUOTA_BYTES = 8 * 1024 * 1024
OPTIONS = (
    *("--others", "--limit", f"user_backlog_bytes_max={QUOTA_BYTES}"),
    *("--limit", "backlog_messages_max=0"),
)
SMALL_BYTES = 2 * small_buffer_bytes(Limits())
LARGE_BYTES = 2 * large_buffer_bytes(Limits())


def connect(bus: Bus, stack: ExitStack, count: int) -> list[RawClient]:
    """Clients that will not read."""
    clients = [stack.enter_context(bus.connect()) for _ in range(count)]
    for client in clients:
        client.control(b"!/notices/on")
        client.sub(b"flood")
        client.whoami()
    return clients


def flood(bus: Bus) -> None:
    with bus.connect() as publisher:
        for _ in range(MESSAGES):
            publisher.send(MESSAGE)
        publisher.sync()


def kept_messages(client: RawClient) -> int:
    """How many messages the kernel kept for a client, which learns about all others."""
    received = client.sync()
    counts = Counter(packet.partition(b"\0")[0] for packet in received)
    lost = sum(int(it.partition(b"\0")[2]) for it in received if it.startswith(b"CMSG !/lost"))
    assert counts[b"MSG flood"] + lost == MESSAGES
    return counts[b"MSG flood"]


def test_the_kernel_keeps_as_much_as_the_account_has_room_for(tmp_path: Path) -> None:
    workers = 2
    with running_bus(tmp_path, *OPTIONS, workers=workers) as bus, ExitStack() as stack:
        clients = connect(bus, stack, CLIENTS)
        flood(bus)
        with administer(bus) as admin:
            user = own_user(admin)
            shown = [it["activity"]["socket_bytes"] for it in admin.ask("clients")["clients"]]
        kept = [kept_messages(client) for client in clients]
    # What several workers add at the same instant may exceed a quota.
    quota_bytes = QUOTA_BYTES + (workers - 1) * LARGE_BYTES
    assert user["socket_bytes"] <= quota_bytes
    # A buffer may be exceeded by its last packet.
    bound = quota_bytes + CLIENTS * (SMALL_BYTES + KERNEL_BYTES)
    assert sum(kept) * KERNEL_BYTES <= bound
    assert sum(shown) <= bound
    assert min(kept) > 80, "each has a small buffer"
    assert max(kept) * KERNEL_BYTES >= LARGE_BYTES, "some have a large one"


@needs_root
def test_what_one_user_does_not_read_costs_others_nothing() -> None:
    with (
        directory_for_everybody() as directory,
        running_bus(directory, *OPTIONS, workers=1) as bus,
        ExitStack() as stack,
    ):
        connect(bus, stack, CLIENTS)
        flood(bus)
        with effective_user(STRANGER):
            (other,) = connect(bus, stack, 1)
        flood(bus)
        assert kept_messages(other) * KERNEL_BYTES >= LARGE_BYTES


def test_clients_that_leave_without_reading_stay_connections(tmp_path: Path) -> None:
    """Otherwise a user could leave and connect again until the kernel has no memory left."""
    with (
        running_bus(tmp_path, *OPTIONS, "--limit", "user_connections_max=6", workers=1) as bus,
        ExitStack() as stack,
        administer(bus) as admin,
    ):
        clients = connect(bus, stack, 5)
        flood(bus)
        for client in clients:
            client.sock.shutdown(socket.SHUT_WR)
            wait_for_end(client)
        stack.enter_context(bus.connect()).whoami()
        with bus.connect() as refused:
            assert b"too-many-connections" in refused.receive()
        user = own_user(admin)
        assert user["connections"] == 6
        assert user["socket_bytes"] > 0
        read = clients.pop().receive_until_closed()
        assert len(read) > 80, "they may still read what they had"
        clients.pop().close()

        def have_left() -> bool:
            return bool(own_user(admin)["connections"] == 4)

        wait_until(have_left, "one client has read the rest, another one has closed its socket")
        for _ in range(2):
            stack.enter_context(bus.connect()).whoami()
        for client in clients:
            client.close()

        def is_all_released() -> bool:
            user = own_user(admin)
            return bool(user["connections"] == 3 and user["socket_bytes"] == 0)

        wait_until(is_all_released, "all have left")


def wait_for_end(client: RawClient) -> None:
    """Wait until the bus has ended the connection; what it has sent is still there."""
    poll = select.poll()
    poll.register(client, select.POLLHUP)
    assert poll.poll(10_000)

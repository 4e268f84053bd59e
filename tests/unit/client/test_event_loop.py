"""The library's own waits for a socket, which work with the anyio that a program brings."""

import socket

import anyio
import pytest

import sbus
from sbus.client.event_loop import running_event_loop
from sbus.protocol.packets import Message
from tests.support.event_loops import on_both_event_loops
from tests.unit.client.fake_bus import FakeBus

LATER_THAN_3_6 = ("notify_closing", "wait_readable", "wait_writable")
"""Functions of anyio that version 3.6 does not have."""


@pytest.fixture
def old_anyio(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = anyio.Lock
    for name in LATER_THAN_3_6:
        monkeypatch.setattr(anyio, name, None)  # if it were deleted, anyio would load it again
    monkeypatch.setattr(anyio, "Lock", lambda: lock())


@pytest.mark.usefixtures("old_anyio")
@on_both_event_loops
async def test_a_connection_needs_nothing_later_than_anyio_3_6(fake: FakeBus) -> None:
    with anyio.fail_after(60), fake.admitting():
        async with sbus.connect(fake.address) as bus:
            fake.accept()
            await bus.publish("key", "payload")
            assert fake.receive() == b"MSG key\0payload"
            has_arrived, has_ended = anyio.Event(), anyio.Event()

            async def iterate() -> None:
                async for message in bus:
                    assert message == Message(b"key", b"payload")
                    has_arrived.set()
                has_ended.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(iterate)
                await anyio.wait_all_tasks_blocked()
                fake.send(b"MSG key\0payload")
                await has_arrived.wait()
                await anyio.wait_all_tasks_blocked()
                bus.close()
            assert has_ended.is_set()


@on_both_event_loops
async def test_a_closed_socket_s_number_may_be_used_again_at_once() -> None:
    """The task that was woken leaves the new socket alone."""
    loop = running_event_loop()
    old, peer = socket.socketpair()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            fd = old.fileno()
            tasks.start_soon(loop.wait_readable, fd)
            await anyio.wait_all_tasks_blocked()
            loop.notify_closing(fd)
            old.close()
            new, new_peer = socket.socketpair()
            assert new.fileno() == fd
            tasks.start_soon(running_event_loop().wait_readable, fd)
            await anyio.wait_all_tasks_blocked()
            new_peer.send(b"x")
    for sock in (peer, new, new_peer):
        sock.close()


@on_both_event_loops
async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    loop = running_event_loop()
    ours, peer = socket.socketpair()
    with ours, peer, anyio.fail_after(60):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await loop.wait_readable(ours.fileno())
        assert scope.cancelled_caught
        peer.send(b"x")
        await loop.wait_readable(ours.fileno())
        await loop.wait_writable(ours.fileno())

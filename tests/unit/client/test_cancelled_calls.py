"""A call that is cancelled while the bus holds the client back has done nothing."""

from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
from anyio import wait_all_tasks_blocked
from anyio.to_thread import run_sync

from tests.support.event_loops import on_both_event_loops
from tests.unit.client.fake_bus import ANSWER, ORDER, WHOAMI, FakeBus
from tests.unit.client.test_connection import TIMEOUT_S, Bus, connected

FLOOD = b"MSG flood\0" + bytes(1_000)


def hold_back(client: Bus) -> None:
    """The client has no room to send until the bus reads."""
    with suppress(BlockingIOError):
        while True:
            client._link.sock.send(FLOOD)


def make_room(fake: FakeBus) -> None:
    """The bus reads what has held the client back."""
    assert fake.client is not None
    fake.client.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            assert fake.receive() == FLOOD
    fake.client.settimeout(TIMEOUT_S)


async def subscribe(client: Bus, scope: anyio.CancelScope) -> None:
    with scope:
        await client.subscribe("x/")
        raise AssertionError("it was to be cancelled")


@on_both_event_loops
async def test_a_subscription_that_was_not_sent_receives_nothing(tmp_path: Path) -> None:
    with FakeBus(tmp_path) as fake:
        async with connected(fake) as client:
            fake.send(ANSWER)
            async with client.subscription("x/") as messages:
                assert [fake.receive(), fake.receive()] == [b"SUB x/", WHOAMI]
                hold_back(client)
                scope = anyio.CancelScope()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(subscribe, client, scope)
                    await wait_all_tasks_blocked()
                    scope.cancel()
                fake.send(b"MSG x/1\0")
                assert (await messages.receive()).key == b"x/1"
                assert client.statistics().messages == 0
                make_room(fake)


async def first_request(client: Bus, scope: anyio.CancelScope) -> None:
    with scope:
        await client.request("q", "cancelled")
        raise AssertionError("it was to be cancelled")


async def second_request(client: Bus, answers: list[bytes]) -> None:
    answers.append(await client.request("q", "answered"))


@on_both_event_loops
async def test_a_cancelled_first_request_leaves_others_their_answers(tmp_path: Path) -> None:
    answers: list[bytes] = []
    with FakeBus(tmp_path) as fake:
        async with connected(fake) as client, anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            tasks.start_soon(first_request, client, scope)
            assert [await run_sync(fake.receive) for _ in range(2)] == [ORDER, WHOAMI]
            hold_back(client)
            fake.send(ANSWER)
            while client._link.barrier.identity is None:
                await anyio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            tasks.start_soon(second_request, client, answers)
            await wait_all_tasks_blocked()
            scope.cancel()
            await wait_all_tasks_blocked()
            make_room(fake)
            assert await run_sync(fake.receive) == WHOAMI
            fake.send(ANSWER)
            subscribed = await run_sync(fake.receive)
            _, _, _, reply_key, token, body = (await run_sync(fake.receive)).split(b"\0", 5)
            assert (b"SUB " + reply_key, body) == (subscribed, b"answered")
            fake.send(b"MSG %b\0%b\0yes" % (reply_key, token))
    assert answers == [b"yes"]

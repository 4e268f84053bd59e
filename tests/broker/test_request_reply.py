"""Requests and answers over a real bus."""

from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

import sbus
from tests.support.bus import Bus
from tests.support.event_loops import on_both_event_loops

TIMEOUT_S = 60.0
SILENCE_S = 0.05


@pytest.fixture
def bus(shared_bus: Bus) -> Bus:
    return shared_bus


async def add(
    client: sbus.Connection[sbus.Message], *, task_status: anyio.abc.TaskStatus[None]
) -> None:
    """Answer with the sum of the numbers in a request."""
    async with client.requests("sum/*") as requests:
        task_status.started()
        async for request in requests:
            try:
                numbers = map(int, request.payload.split())
                await request.reply(str(sum(numbers)))
            except ValueError as error:
                await request.fail(str(error))


@on_both_event_loops
async def test_requests_of_several_tasks_get_their_own_answers(bus: Bus) -> None:
    answers = {}

    async def ask(client: sbus.Connection[sbus.Message], number: int) -> None:
        answers[number] = await client.request("sum/x", f"{number} {number}")

    with anyio.fail_after(TIMEOUT_S):
        async with (
            sbus.connect(bus.address) as server,
            sbus.connect(bus.address) as client,
            anyio.create_task_group() as tasks,
        ):
            await tasks.start(add, server)
            async with anyio.create_task_group() as requesters:
                for number in range(50):
                    requesters.start_soon(ask, client, number)
            with pytest.raises(sbus.RequestFailed, match="invalid literal"):
                await client.request("sum/x", "one two")
            assert client.statistics().messages == 0
            tasks.cancel_scope.cancel()
    assert answers == {number: str(2 * number).encode() for number in range(50)}


@on_both_event_loops
async def test_a_request_that_nobody_receives_fails_at_once(bus: Bus) -> None:
    with anyio.fail_after(TIMEOUT_S):
        async with sbus.connect(bus.address) as client:
            with pytest.raises(sbus.NobodyListens, match="'nobody'"):
                await client.request("nobody", timeout_seconds=None)
            async with client.subscription("nobody") as messages:
                await client.control("echo/off")
                with pytest.raises(sbus.NobodyListens):
                    await client.request("nobody", timeout_seconds=None)
                await client.control("echo/on")
                with pytest.raises(TimeoutError):  # a subscriber that does not answer
                    await client.request("nobody", timeout_seconds=SILENCE_S)
                assert (await messages.receive()).key == b"nobody"
            await client.sync()  # the next client has no subscriber either


def test_no_request_and_no_answer_ends_an_answerer(bus: Bus) -> None:
    with (
        sbus.blocking.connect(bus.address) as server,
        sbus.blocking.connect(bus.address) as client,
        server.requests("k") as requests,
        ThreadPoolExecutor(1) as executor,
    ):
        client.publish("k", b"!/cred/00/0/1/reply/x\0t\0")  # no key may have this id
        client.sync()
        for answer in (bytes(1_000_000), bytes(409_600)):
            asking = executor.submit(client.request, "k", b"first", timeout_seconds=TIMEOUT_S)
            request = requests.receive(timeout_seconds=TIMEOUT_S)
            assert request.payload == b"first"
            request.reply(answer)
            with pytest.raises(sbus.RequestFailed, match="would have"):
                asking.result()
        asking = executor.submit(client.request, "k", timeout_seconds=TIMEOUT_S)
        requests.receive(timeout_seconds=TIMEOUT_S).fail("\udc80" + "x" * 1_000_000)
        with pytest.raises(sbus.RequestFailed, match=r"\\udc80x"):
            asking.result()
        server.sync()

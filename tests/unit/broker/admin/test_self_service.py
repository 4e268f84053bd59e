"""Users who ask what the bus has of them: each in turn, and some of a user's clients at a time."""

import socket
from typing import cast

import trio
import trio.testing

from sbus.broker.admin.self_service import SelfServiceQueries
from sbus.broker.front.client_registry import Client, ClientRegistry
from sbus.protocol.admin_results import MeResult, UserReport
from sbus.shared.accounts import Account
from sbus.unix.credentials import Credentials

MANY = 1_000


def client(number: int, uid: int) -> Client:
    return Client(
        number=number,
        worker=0,
        account=cast(Account, None),
        sock=cast(socket.socket, None),
        credentials=Credentials(pid=1, uid=uid, gid=uid),
        connected_at=0.0,
    )


def test_a_user_who_asks_with_many_connections_has_others_wait_for_some_of_them() -> None:
    registry = ClientRegistry(1)
    for number in range(MANY + 1):
        registry.add(client(number, uid=2 if number == MANY else 1))
    told: list[int] = []
    asked: list[int] = []

    async def find_out(uid: int) -> MeResult:
        asked.append(uid)
        await trio.lowlevel.checkpoint()
        return MeResult(user=cast(UserReport, None), clients=[], subscriptions=[], unanswered=[])

    async def all_are_told() -> None:
        done = trio.Event()

        def tell(number: int, _: bytes) -> None:
            told.append(number)
            if len(told) > MANY:
                done.set()

        self_service = SelfServiceQueries(registry, 65_536, find_out, tell)
        for number in range(MANY + 1):
            self_service.add(number)
        with trio.fail_after(60):
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self_service.run)
                await done.wait()
                tasks.cancel_scope.cancel()

    trio.run(all_are_told, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sorted(told) == list(range(MANY + 1)), "everybody is told once"
    assert told.index(MANY) < MANY / 2
    assert len(asked) < MANY / 2, "clients of a user share an answer"

"""Self service: users are answered in turn, a bounded number of a user's clients at a time."""

from typing import cast

import trio
import trio.testing

from sbus.broker.admin.inspection_handlers import InspectionHandlers
from sbus.broker.admin.self_service import SelfServiceQueries
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.ipc.worker_protocol import SelfServiceReply
from sbus.limits import Limits
from sbus.protocol.admin_results import MeResult, UserReport
from sbus.unix.credentials import Credentials
from tests.support.no_socket import no_socket
from tests.unit.shared.memories import open_account, spare_slots

MANY = 1_000


def connect(registry: ClientRegistry, uid: int) -> None:
    credentials = Credentials(pid=1, uid=uid, gid=uid)
    registry.add(0, no_socket(), credentials, open_account(Limits(users_max=1), uid))


class Bus:
    """Stands in for the handlers that answer and for the supervisor that sends."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answered: list[int] = []
        self.done = trio.Event()

    async def me(self, uid: int) -> MeResult:
        self.asked.append(uid)
        await trio.lowlevel.checkpoint()
        return MeResult(user=cast(UserReport, None), clients=[], subscriptions=[], unanswered=[])

    def send(self, _worker: int, command: SelfServiceReply) -> None:
        self.answered.append(command.client)
        if len(self.answered) > MANY:
            self.done.set()


def test_a_user_with_many_requests_delays_others_by_few_of_them() -> None:
    registry = ClientRegistry(1, spare_slots(MANY + 1))
    for number in range(1, MANY + 2):
        connect(registry, uid=2 if number > MANY else 1)
    bus = Bus()

    async def all_are_answered() -> None:
        self_service = SelfServiceQueries(
            registry, cast(Supervisor, bus), cast(InspectionHandlers, bus), 65_536
        )
        for number in range(1, MANY + 2):
            self_service.add(number)
        with trio.fail_after(60):
            async with trio.open_nursery() as tasks:
                tasks.start_soon(self_service.run)
                await bus.done.wait()
                tasks.cancel_scope.cancel()

    trio.run(all_are_answered, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sorted(bus.answered) == list(range(1, MANY + 2)), "every client is answered once"
    assert bus.answered.index(MANY + 1) < MANY / 2
    assert len(bus.asked) < MANY / 2, "clients of a user share an answer"

"""Fair queueing beside its contract: what a user is read and sent, and how many users are known."""

from hypothesis import given
from hypothesis import strategies as st

from sbus.broker.worker.fair_queue import FairQueue

TURN = 64


class Client:
    def __init__(self, account_place: int, number: int = 0) -> None:
        self.account_place = account_place
        self.number = number
        self.is_queued = False

    def __repr__(self) -> str:
        return f"{self.account_place}.{self.number}"


def enqueue(queue: FairQueue[Client], **clients_of: int) -> None:
    for name, count in clients_of.items():
        for number in range(count):
            queue.add(Client(ord(name), number))


def run(queue: FairQueue[Client], rounds: int, cost: int) -> None:
    """Everybody always has more to do."""
    for _ in range(rounds):
        client = queue.next()
        assert client is not None
        queue.charge(client.account_place, cost)
        queue.add(client)


def test_users_who_owe_nothing_are_forgotten() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=1)
    run(queue, 1, TURN)
    for user in range(1000, 3000):
        visitor = Client(user)
        queue.add(visitor)
        assert queue.next() is visitor
        queue.charge(user, TURN)
        run(queue, 2, TURN)
        assert queue.users_known <= 100


def test_who_is_alone_need_not_sit_out() -> None:
    queue: FairQueue[Client] = FairQueue()
    enqueue(queue, a=1)
    run(queue, 10, 1_000_000)


@given(readers=st.integers(1, 50), writers=st.integers(1, 50))
def test_a_user_is_read_once_for_four_times_it_is_sent_to(readers: int, writers: int) -> None:
    """However many there are of each; and each kind in turn among itself."""
    queue: FairQueue[Client] = FairQueue()
    reading = [Client(1, number) for number in range(readers)]
    sending = [Client(1, -1 - number) for number in range(writers)]
    for each in reading:
        queue.add(each)
    for each in sending:
        queue.add(each, sending=True)
    served = []
    for _ in range(5 * (readers + writers)):
        client = queue.next()
        assert client is not None
        served.append(client)
        queue.charge(1, TURN)
        queue.add(client, sending=client.number < 0)
    assert [client.number < 0 for client in served] == [True, True, True, True, False] * (
        readers + writers
    )
    for kind in (reading, sending):
        own = [client for client in served if client in kind]
        assert own == [kind[at % len(kind)] for at in range(len(own))]


def test_who_is_only_sent_to_has_every_turn_of_its_user() -> None:
    queue: FairQueue[Client] = FairQueue()
    lags = Client(1)
    for _ in range(3):
        queue.add(lags, sending=True)
        assert queue.next() is lags
    assert queue.next() is None

"""Contract: a claim on something of which a user, or the bus, has a bounded amount.

A client takes at most as much of its user's quota as it leaves to the user's other clients, and a
user at most as much of the bus's as it leaves to other users. What a client took comes back once,
however the client ends and whichever worker serves it then.

    client's use + more <= user's quota - (user's use + more)
    user's use + more   <= bus's quota  - (bus's use + more)
"""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.lab import UID, Client, Lab, lab

SUBSCRIPTIONS_MAX, SUBSCRIPTION_BYTES_MAX, CLIENT_BYTES_MAX, BUS_BYTES_MAX = 14, 1400, 500, 2400
REFUSED = b"CMSG !/error\0too-many-patterns "
PATTERNS = st.sampled_from([b"k", b"a/b", b"a/b/c", b"long" * 20, b"long" * 30 + b"/x"])


def fits(more: int, own: int, of_all: int, quota: int) -> bool:
    """Whether one that has `own` may take more of a quota of which all have so much."""
    return own + more <= quota - (of_all + more)


def size_of(pattern: bytes) -> int:
    return len(pattern) + 64 * (pattern.count(b"/") + 1)


class Subscribers:
    """Clients of two users, and what each has."""

    def __init__(self, opened: Lab) -> None:
        self.lab = opened
        self.patterns: dict[Client, Counter[bytes]] = {}
        for number in range(6):
            self.join(UID + number % 2, number // 2 % 2)

    def join(self, uid: int, worker: int) -> Client:
        client = self.lab.connect(worker, uid)
        client.say(b"CMSG !/notices/on")
        self.patterns[client] = Counter()
        return client

    def use(self, *clients: Client) -> tuple[int, int]:
        """Subscriptions of these clients, and their bytes."""
        found = [it for client in clients for it in self.patterns[client].elements()]
        return len(found), sum(map(size_of, found))

    def subscribe(self, client: Client, pattern: bytes) -> None:
        users = [it for it in self.patterns if it.credentials == client.credentials]
        (own, own_bytes), (of_user, user_bytes) = self.use(client), self.use(*users)
        more = size_of(pattern)
        allowed = (
            own_bytes + more <= CLIENT_BYTES_MAX
            and fits(1, own, of_user, SUBSCRIPTIONS_MAX)
            and fits(more, own_bytes, user_bytes, SUBSCRIPTION_BYTES_MAX)
            and fits(more, user_bytes, self.use(*self.patterns)[1], BUS_BYTES_MAX)
        )
        found = client.say(b"SUB " + pattern)
        assert [it.startswith(REFUSED) for it in found] == [True] * (not allowed), allowed
        self.patterns[client][pattern] += allowed

    def act(self, what: str, client: Client, pattern: bytes) -> None:
        if what == "SUB":
            self.subscribe(client, pattern)
        elif what == "UNSUB":
            assert client.say(b"UNSUB " + pattern) == []
            self.patterns[client] -= Counter([pattern])
        elif what in ("leave", "die without"):
            del self.patterns[client]
            client.close()
            if what == "leave":
                self.lab.settle()
            else:
                self.lab.die(client.worker, client)
            self.join(client.credentials.uid, client.worker)
        else:
            self.lab.happen(what, client)


EVENTS = ["UNSUB", "UNSUB", "leave", "die", "die without", "move", "move", "resume"]
ACTS = st.tuples(st.sampled_from(["SUB"] * 12 + EVENTS), st.integers(0, 5), PATTERNS)


@settings(max_examples=20)
@given(st.lists(ACTS, min_size=30, max_size=80))
def test_subscriptions(acts: list[tuple[str, int, bytes]]) -> None:
    with lab(
        user_subscriptions_max=SUBSCRIPTIONS_MAX,
        user_subscription_bytes_max=SUBSCRIPTION_BYTES_MAX,
        client_subscription_bytes_max=CLIENT_BYTES_MAX,
        bus_subscription_bytes_max=BUS_BYTES_MAX,
    ) as opened:
        subscribers = Subscribers(opened)
        for what, pick, pattern in acts:
            subscribers.act(what, list(subscribers.patterns)[pick], pattern)
        for _ in range(SUBSCRIPTIONS_MAX):
            for client in list(subscribers.patterns):
                subscribers.subscribe(client, b"")

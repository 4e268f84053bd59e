"""Contract: what waits for a client that does not read.

Each message for it is sent, kept, put in the place of an older one, or dropped for want of room.
What is kept is sent in the client's order; control messages keep their place in any order, and a
notice stands where messages are missing, exactly there with `order/queue`. Moves and upgrades do
not change that. If its worker dies, all that waits is missing, but for replies.

    accepted = delivered + lost + replaced + in the backlog
"""

from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.lab import Lab, lab

MESSAGES_MAX, BYTES_MAX = 12, 2500
LOST, REPLY = b"CMSG !/lost\0", b"CMSG !/sync\0"
Item = bytes | int
"""A message, a reply, or how many messages are missing."""


def is_message(item: Item) -> bool:
    return isinstance(item, bytes) and item.startswith(b"MSG ")


def is_reply(item: Item) -> bool:
    return isinstance(item, bytes) and not is_message(item)


def key_of(message: bytes) -> bytes:
    return message[: message.index(0)]


class Waiting:
    """What waits for the client as it came, and what is in its socket."""

    def __init__(self) -> None:
        self.order = "queue"
        self.items: list[Item] = []
        self.missing = 0
        """At no particular place."""
        self.socket: list[Item] = []

    @property
    def messages(self) -> list[bytes]:
        return [it for it in self.items if isinstance(it, bytes) and is_message(it)]

    @property
    def has_reply(self) -> bool:
        return any(map(is_reply, self.items))

    def gaps(self) -> int:
        return sum(it for it in self.items if isinstance(it, int))

    def drop(self) -> None:
        if self.order == "queue":
            last = self.items[-1] if self.items else b""
            self.items[-1:] = [last + 1] if isinstance(last, int) else [*self.items[-1:], 1]
        else:
            self.missing += 1

    def choose(self, order: str) -> None:
        self.order = order
        if order != "queue":
            self.missing += self.gaps()
            self.items = [it for it in self.items if isinstance(it, bytes)]

    def replace(self, message: bytes) -> None:
        """There is an older message with this key behind the last reply."""
        old = [it for it in self.messages if key_of(it) == key_of(message)][-1]
        at = self.items.index(old)
        assert not any(map(is_reply, self.items[at:])), "a reply is between the two"
        self.items[at] = message

    def lose(self) -> None:
        """The worker dies."""
        lost = self.missing + len(self.messages) + self.gaps()
        self.items = list(filter(is_reply, self.items))
        self.items[:0] = [lost] * bool(lost)
        self.missing = 0

    def send_one(self) -> None:
        """The next item goes to the socket."""
        if self.missing:
            self.socket.append(self.missing)
            self.missing = 0
            return
        section = list(takewhile(lambda it: not is_reply(it), self.items))
        item = self.items[0]
        if section and not isinstance(item, int):
            messages = [it for it in section if isinstance(it, bytes)]
            newest, largest = messages[-1], max(messages, key=len)
            item = {"stack": newest, "random": largest}.get(self.order, item)
        self.items.remove(item)
        self.socket.append(item)

    def send_messages(self, count: int) -> None:
        """So many messages go to the socket, with all that comes before them."""
        while count:
            self.send_one()
            count -= is_message(self.socket[-1])

    def read(self, packet: bytes) -> None:
        """The client has read this."""
        first = next((it for it in (*self.socket, *self.items) if isinstance(it, bytes)), b"")
        if is_reply(packet) and packet == first:
            # It was sent before messages were dropped of which it is told next.
            (self.socket if packet in self.socket else self.items).remove(packet)
            return
        if not self.socket:
            self.send_one()
        item = self.socket.pop(0)
        if not isinstance(item, int):
            assert packet == item
            return
        assert packet.startswith(LOST), "messages are missing here"
        told = int(packet.removeprefix(LOST))
        assert 0 < told <= item
        self.socket[:0] = [item - told] * (told < item)


class Slow:
    """The client, and its publishers on both workers."""

    def __init__(self, opened: Lab) -> None:
        self.lab = opened
        self.publishers = [opened.connect(worker) for worker in range(2)]
        self.client = opened.connect(0, small=True)
        self.client.say(b"CMSG !/notices/on", b"SUB k/")
        self.waiting = Waiting()
        self.soft = "queue"
        self.number = self.sent = 0
        self.counts = 0, 0, 0
        self.last_dropped_bytes: int | None = None
        """Of the shortest message that was dropped since the client has read or chosen."""

    def look(self) -> tuple[int, ...]:
        """How many messages were delivered, dropped and replaced since the last look."""
        found = self.client.activity()
        assert found.accepted == self.sent
        assert found.delivered + found.discarded + found.replaced + found.backlog == self.sent
        counts = found.delivered, found.discarded, found.replaced
        new = tuple(now - before for now, before in zip(counts, self.counts, strict=True))
        self.counts = counts
        self.backlog = found.backlog, found.backlog_bytes
        return new

    def check_backlog(self) -> None:
        messages = self.waiting.messages
        assert self.backlog == (len(messages), sum(map(len, messages)))
        assert len(messages) <= MESSAGES_MAX
        assert sum(map(len, messages)) <= BYTES_MAX

    def publish(self, number: int, size: int) -> None:
        self.number += 1
        message = b"MSG k/%d\0%d " % (number % 3, self.number) + bytes(size)
        self.publishers[number % 2].say(message)
        self.sent += 1
        waiting = self.waiting
        outcome, before = self.look(), waiting.messages
        if outcome == (1, 0, 0):
            assert not before, "it has overtaken others"
            while waiting.items or waiting.missing:
                waiting.send_one()
            waiting.socket.append(message)
        elif outcome == (0, 1, 0):
            has_room = len(before) < MESSAGES_MAX and sum(map(len, [*before, message])) <= BYTES_MAX
            shortest = self.last_dropped_bytes
            is_likewise = shortest is not None and len(message) >= shortest
            assert self.soft == "discard" or is_likewise or not has_room
            self.last_dropped_bytes = min(shortest or len(message), len(message))
            waiting.drop()
        elif outcome == (0, 0, 1):
            assert waiting.order == "latest"
            waiting.replace(message)
        else:
            assert outcome == (0, 0, 0)
            assert self.soft == "queue"
            keys = set(map(key_of, before))
            assert waiting.order != "latest" or waiting.has_reply or key_of(message) not in keys
            waiting.items.append(message)
        self.check_backlog()

    def read(self, packets_max: int) -> bool:
        """Whether there was anything."""
        packets = self.client.read(packets_max)
        for packet in packets:
            self.waiting.read(packet)
        self.lab.settle()
        delivered, *others = self.look()
        assert others == [0, 0]
        self.waiting.send_messages(delivered)
        self.check_backlog()
        self.last_dropped_bytes = None
        return bool(packets)

    def choose(self, choice: str) -> None:
        """What the client says is not read while a reply to it waits."""
        kind, _, value = choice.rpartition("/")
        if self.waiting.has_reply or (value == "latest" and self.waiting.messages):
            return
        self.client.send(b"CMSG " + choice.encode())
        self.lab.settle()
        self.last_dropped_bytes = None
        if kind == "order":
            self.waiting.choose(value)
        else:
            self.soft = value

    def ask(self) -> None:
        if self.waiting.has_reply:
            return
        self.client.send(b"CMSG !/sync\0%d" % self.sent)
        self.lab.settle()
        self.waiting.items.append(REPLY + b"%d" % self.sent)

    def happen(self, event: str) -> None:
        self.lab.happen(event, self.client)
        self.last_dropped_bytes = None
        if event in ("die", "resume"):
            self.waiting.lose()
            self.sent, self.counts = 0, (0, 0, 0)
        assert self.look()[1:] == (0, 0)
        self.check_backlog()


ORDERS = [f"order/{order}" for order in ("queue", "stack", "random", "latest")]
CHOICES = [*ORDERS, "blocking/soft/queue", "blocking/soft/discard"]
EVENTS = st.sampled_from(["move", "move", "upgrade", "die", "resume"])
WORDS = st.sampled_from(["publish", "burst", "read", "read", "choose", "ask"])
ACTS = st.lists(st.tuples(WORDS, st.integers(0, 5), st.integers(0, 700)), min_size=10, max_size=40)


@settings(max_examples=60)
@given(order=st.sampled_from(ORDERS), acts=ACTS, event=EVENTS, at=st.integers(5, 40))
def test_what_waits(order: str, acts: list[tuple[str, int, int]], event: str, at: int) -> None:
    with lab(backlog_messages_max=MESSAGES_MAX, backlog_bytes_max=BYTES_MAX) as opened:
        slow = Slow(opened)
        slow.choose(order)
        acts = [("burst", 0, 100), *acts]
        for number, (what, pick, size) in enumerate(acts):
            if number == at % len(acts):
                slow.happen(event)
            if what == "read":
                slow.read(1 + pick)
            elif what == "choose":
                slow.choose(CHOICES[pick])
            elif what == "ask":
                slow.ask()
            for more in range({"publish": 1, "burst": 10}.get(what, 0)):
                slow.publish(pick + more, size)
        while slow.read(1_000):
            pass
        assert not slow.waiting.items
        assert not slow.waiting.missing
        assert not slow.waiting.socket

"""Contract: a client that comes to another worker is as it was.

A worker has a client because the front gave it a new one, another worker handed it over, its
predecessor died, or another bus had it. All that the client, other clients and administrators can
notice of it is the same afterwards: patterns, choices, name, sender, place in the order. What it
has sent is done exactly once. A client that has left meanwhile leaves its will, once.
"""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.lab import UID, Client, Lab, lab
from tests.fuzz.one_process_bus import CREDENTIALS
from tests.history.matching import is_for

PATTERNS = [b"a", b"a/", b"a/*", b"*/x", b"", b"!/cred////s", b"!/cred/100///*"]
KEYS = [b"a", b"a/x", b"b/x", b"!/cred////s", b"!/cred/100///s", b"!/cred/101///s"]
IDS = tuple(b"%d" % number for number in (CREDENTIALS.gid, UID, CREDENTIALS.pid))
CHOICES = {
    "soft": ["queue", "discard", "block", "error"],
    "hard": ["discard", "block", "error"],
    "order": ["queue", "stack", "random", "latest"],
    "age_ms_max": ["0", "60000"],
    "echo": ["on", "off"],
    "sender": ["on", "off"],
}
PREFIXES = {"soft": "blocking/soft", "hard": "blocking/hard", "age_ms_max": "age"}
FROM = b"CMSG !/from\0"


class Expected:
    """A client as it must be."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.patterns: Counter[bytes] = Counter()
        self.chosen = {kind: values[0] for kind, values in CHOICES.items()} | {"sender": "off"}
        self.name = b""
        self.place = 0
        """Of the last message of which it was told the sender."""

    def receives(self, key: bytes, publisher: "Expected") -> bool:
        if publisher is self and self.chosen["echo"] == "off":
            return False
        return any(is_for(pattern, key, IDS, "slash") for pattern in self.patterns)

    def packets(self, what: str, pick: int) -> list[bytes]:
        """What the client sends; it is so from then on."""
        pattern = PATTERNS[pick % len(PATTERNS)]
        if what == "SUB":
            self.patterns[pattern] += 1
            return [b"SUB " + pattern]
        if what == "UNSUB":
            self.patterns -= Counter([pattern])
            return [b"UNSUB " + pattern]
        if what == "name":
            self.name, name = (b"", b"") if self.name else (b"n%d" % self.client.number,) * 2
            return [b"CMSG !/join\0%b\0will\0of %b" % (name, name) if name else b"CMSG !/leave"]
        kind = list(CHOICES)[pick % len(CHOICES)]
        self.chosen[kind] = CHOICES[kind][pick // len(CHOICES) % len(CHOICES[kind])]
        return [f"CMSG {PREFIXES.get(kind, kind)}/{self.chosen[kind]}".encode()]


class Crowd:
    """Clients of both workers, and one that watches wills and names."""

    def __init__(self, opened: Lab) -> None:
        self.lab = opened
        self.watcher = opened.connect(0)
        self.watcher.say(b"SUB will", b"SUB !/presence/*/*")
        self.all = [Expected(opened.connect(number % 2)) for number in range(5)]

    def forget_news(self) -> None:
        for client in (self.watcher, *(one.client for one in self.all)):
            client.read_all()

    def check(self) -> None:
        for one in self.all:
            activity = one.client.activity()
            for kind in ("soft", "hard", "order", "age_ms_max"):
                assert str(getattr(activity, kind)) == one.chosen[kind], kind
            assert activity.subscriptions == one.patterns.total() + bool(one.name)
            assert not activity.backlog
        for publisher in self.all:
            number = publisher.client.number
            publisher.client.send(*(b"MSG %b\0of %d" % (key, number) for key in KEYS))
            self.lab.settle()
            for one in self.all:
                self.check_received(one, publisher)
        own = b"%d %d" % (CREDENTIALS.gid, CREDENTIALS.pid)
        named = [(it.name, it.client.number) for it in self.all if it.name]
        lines = [b"%d %b %d %b" % (UID, name, number, own) for name, number in sorted(named)]
        members = b"\n".join([b"CMSG !/members\0end", *lines])
        assert self.watcher.say(b"CMSG !/members\0*/*") == [members]

    def check_received(self, one: Expected, publisher: Expected) -> None:
        number = publisher.client.number
        due = [b"MSG %b\0of %d" % (it, number) for it in KEYS if one.receives(it, publisher)]
        got = one.client.read()
        if one.chosen["sender"] == "on":
            assert all(packet.startswith(FROM) for packet in got), "it is told of senders"
            heads = [packet[len(FROM) :].split(b" ", 5) for packet in got]
            places = [one.place, *(int(head[0]) for head in heads)]
            whose = (number, CREDENTIALS.gid, UID, CREDENTIALS.pid)
            assert all(tuple(map(int, head[1:5])) == whose for head in heads)
            assert places == sorted(set(places)), "it is behind the last one"
            one.place = places[-1]
            got = [head[5] for head in heads]
        assert got == due


WORDS = st.sampled_from(["SUB", "SUB", "UNSUB", "choose", "choose", "name"])
ACT = st.tuples(st.integers(0, 4), WORDS, st.integers(0, 100))
EVENT = st.sampled_from(["move", "die", "resume", "upgrade", "die unread", "leave", "die without"])
FIRST = [
    *((client, "SUB", 0) for client in range(5)),
    *((client, "choose", 10) for client in (0, 1, 4)),
    *((client, "name", 0) for client in (1, 3, 4)),
    (2, "choose", 5),
]
"""Some have no echo, some have names, and one is told of senders."""
MORE = st.lists(ACT, max_size=12)
STEPS = st.lists(st.tuples(EVENT, st.integers(0, 4), MORE), min_size=2, max_size=6)


@settings(max_examples=20)
@given(st.lists(ACT, max_size=20), STEPS)
def test_clients_are_as_they_were(
    acts: list[tuple[int, str, int]],
    steps: list[tuple[str, int, list[tuple[int, str, int]]]],
) -> None:
    with lab() as opened:
        crowd = Crowd(opened)
        for event, pick, more in [("nothing", 0, FIRST + acts), *steps]:
            arrive(crowd, event, crowd.all[pick % len(crowd.all)], more)
            crowd.check()


def arrive(crowd: Crowd, event: str, one: Expected, acts: list[tuple[int, str, int]]) -> None:
    """Something happens to a client, and then several clients do something; or before a worker
    that has not read it dies."""
    opened, worker = crowd.lab, one.client.worker
    if event == "die unread":
        opened.bus.stopped.add(worker)
    elif event not in ("leave", "die without"):
        opened.happen(event, one.client)
        assert event != "move" or one.client.worker != worker, "nothing waits: it is moved"
        assert crowd.watcher.read_all() == [], "nobody has come or gone"
    elif len(crowd.all) > 2:
        crowd.all.remove(one)
        if event == "leave":
            one.client.close()
        else:
            one.client.close()
            opened.die(worker, one.client)
        news = crowd.watcher.read_all()
        due = [b"MSG will\0of " + one.name] * bool(one.name)
        assert [it for it in news if it.startswith(b"MSG will")] == due
        assert len(news) == 2 * len(due)
        crowd.forget_news()
    for pick, what, value in acts:
        other = crowd.all[pick % len(crowd.all)]
        other.client.send(*other.packets(what, value))
        if event != "die unread":
            opened.settle()
    if event == "die unread":
        opened.die(worker)
    crowd.forget_news()

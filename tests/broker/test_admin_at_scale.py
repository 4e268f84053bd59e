"""Eight workers, 320 clients of twenty users, traffic: every verb is correct, over several pages.

A separate process publishes, mostly to single subscribers and now and then to all subscribers of a
user, until it is told to stop; then it reports how many messages it published under each key. Until
then the figures change and the clients do not; afterwards every figure is known.
"""

import json
import os
import select
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbus.cli.sbusctl.command import sbusctl
from tests.support.bus import running_bus
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until
from tests.support.users import directory_for_everybody, effective_user

USERS = list(range(61_000, 61_020)) if os.geteuid() == 0 else [os.geteuid()] * 20
WORKERS = 8
EACH = 15
"""Subscribers of each user, besides its publisher."""
SUBSCRIBERS = EACH * len(USERS)
CLIENTS = SUBSCRIBERS + len(USERS)
BATCH, PAUSE_SECONDS = 50, 0.01
NO_FAN_OUT_BOUND = "--limit=fan_out_us_max=1000000"
"""On a busy machine a fan-out may take longer than its default, and would leave out clients."""


def connect(address: str, uid: int) -> RawClient:
    with effective_user(uid):
        client = RawClient(address)
        client.whoami()
    return client


# -- the publishers' process -----------------------------------------------------------------------
class Traffic:
    """A process with a publisher of each user."""

    def __init__(self, address: str) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(ours_in)
                os.close(ours_out)
                _publish(address, theirs_in, theirs_out)
            finally:
                os._exit(0)
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        assert self._read() == "ready"

    def start(self) -> None:
        os.write(self._out, b".")

    def stop(self) -> Counter[str]:
        """How many messages were published under each key, all of which the bus has processed."""
        os.write(self._out, b".")
        return Counter(json.loads(self._read()))

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        os.waitpid(self.pid, 0)

    def _read(self) -> str:
        ready, _, _ = select.select([self._in], [], [], 20)
        assert ready, "the publishers do not answer"
        size = int.from_bytes(os.read(self._in, 4), "big")
        text = b""
        while len(text) < size:
            text += os.read(self._in, size - len(text))
        return text.decode()


def _publish(address: str, orders: int, report: int) -> None:
    publishers = [connect(address, uid) for uid in USERS]
    published: Counter[str] = Counter()
    _say(report, "ready")
    os.read(orders, 1)
    number = 0
    while not select.select([orders], [], [], PAUSE_SECONDS)[0]:
        for _ in range(BATCH):
            whole_user = number % BATCH == 0
            key = f"u/{number // BATCH % 20}" if whole_user else f"c/{number % SUBSCRIBERS}"
            publishers[number % len(publishers)].pub(key.encode(), b"payload")
            published[key] += 1
            number += 1
    for publisher in publishers:
        publisher.sync()
    _say(report, json.dumps(published))
    os.read(orders, 1)
    os.read(orders, 1)


def _say(report: int, text: str) -> None:
    os.write(report, len(text).to_bytes(4, "big") + text.encode())


# -- the test --------------------------------------------------------------------------------------
class Ctl:
    """`sbusctl` of this bus, in this process."""

    def __init__(self, address: str, capfd: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capfd = capfd
        self._patience = 5

    def __call__(self, *words: str) -> Any:
        return json.loads(self.text(*words, "--json"))

    def text(self, *words: str) -> str:
        """What is printed, once no worker is too busy to answer in the time that the bus gives."""
        while True:
            self._capfd.readouterr()
            sbusctl.main(["-a", self._address, *words], prog_name="sbusctl", standalone_mode=False)
            output, errors = self._capfd.readouterr()
            if not errors:
                return output
            assert "did not answer in time" in errors
            self._patience -= 1
            assert self._patience, errors


def test_every_verb_is_correct(capfd: pytest.CaptureFixture[str]) -> None:
    with directory_for_everybody() as directory, ExitStack() as stack:
        bus = stack.enter_context(
            running_bus(Path(directory), "-go", NO_FAN_OUT_BOUND, workers=WORKERS)
        )
        traffic = Traffic(bus.address)
        stack.callback(traffic.close)
        subscribers = []
        for number in range(SUBSCRIBERS):
            user = number % len(USERS)
            client = stack.enter_context(connect(bus.address, USERS[user]))
            client.sub(b"c/%d" % number)
            client.sub(b"u/%d" % user)
            client.whoami()
            subscribers.append(client)
        ctl = Ctl(bus.address, capfd)
        traffic.start()
        check_who_is_there(ctl)
        published = traffic.stop()
        check_figures(ctl, published, subscribers)


def check_who_is_there(ctl: Ctl) -> None:
    """Every verb once, while messages flow."""
    assert ctl("version")["workers"] == WORKERS
    stats = ctl("stats")
    assert (stats["clients"], stats["users"]) == (CLIENTS, len(set(USERS)))
    wait_until(
        lambda: bool(ctl("stats")["traffic"]["subscriptions"] == 2 * SUBSCRIBERS), "all subscribe"
    )
    assert [worker["clients"] for worker in ctl("workers")["workers"]] == [CLIENTS // WORKERS] * 8
    clients = ctl("clients")["clients"]
    assert Counter(client["uid"] for client in clients) == Counter(USERS * (EACH + 1))
    assert all(client["activity"] for client in clients)
    assert len(ctl("clients", "--user", str(USERS[3]))["clients"]) == (
        (EACH + 1) * USERS.count(USERS[3])
    )
    found = ctl("subs")["subscriptions"]
    wanted = Counter(f"c/{n}" for n in range(SUBSCRIBERS))
    wanted += Counter({f"u/{n}": EACH for n in range(20)})
    assert Counter(entry["pattern"] for entry in found) == wanted
    assert len(ctl("subs", "u/7")["subscriptions"]) == EACH
    users = {user["uid"]: user for user in ctl("users")["users"]}
    connections = Counter(USERS * (EACH + 1))
    assert {uid: users[uid]["connections"] for uid in connections} == dict(connections)
    explained = ctl("explain", "u/7")
    assert explained["recipients_count"] == len(explained["recipients"]) == EACH
    assert {one["uid"] for one in explained["recipients"]} == {USERS[7]}
    assert ctl("explain", "c/123")["recipients_count"] == 1
    limits = ctl("limit", str(USERS[3]), "messages_per_second_max=99999")["after"]
    assert limits["messages_per_second_max"] == 99_999
    for by, rows in (
        ("client", CLIENTS),
        ("user", len(set(USERS))),
        ("worker", WORKERS),
        ("key", len({"c/", "u/"})),
    ):
        wait_until(partial(is_busy, ctl, by, rows), "messages flow")
    assert len(ctl.text("clients").splitlines()) == CLIENTS + 1
    assert len(ctl.text("subs").splitlines()) == 2 * SUBSCRIBERS + 1


def is_busy(ctl: Ctl, by: str, rows: int) -> bool:
    """Whether messages flowed in between two looks, and so many rows were seen."""
    top = ctl("top", "--by", by, "--count", "1", "--interval", "0.2")
    assert len(top["rows"]) == rows or top["unanswered"] or by == "key"
    flow = sum(row["messages_in_per_second"] for row in top["rows"])
    return len(top["rows"]) == rows and flow > 0


def check_figures(ctl: Ctl, published: Counter[str], subscribers: list[RawClient]) -> None:
    """All that was published has arrived, and is counted where it belongs."""
    received = [len(client.sync()) for client in subscribers]
    expected = [published[f"c/{n}"] + published[f"u/{n % 20}"] for n in range(SUBSCRIBERS)]
    assert received == expected
    assert sum(received) > SUBSCRIBERS, "there was traffic"
    wait_until(
        lambda: bool(ctl("stats")["traffic"]["delivered"] == sum(received)), "all is counted"
    )
    traffic = ctl("stats")["traffic"]
    assert traffic["messages_in"] == published.total()
    assert traffic["accepted"] == sum(received)
    assert sum(traffic["latency"]["counts"]) == sum(received)
    workers = ctl("workers")["workers"]
    assert sum(worker["traffic"]["delivered"] for worker in workers) == sum(received)
    clients = [client["activity"] for client in ctl("clients")["clients"]]
    assert [does["delivered"] for does in clients if does["subscriptions"]] == received
    assert sum(does["messages_in"] for does in clients) == published.total()

"""When the ordered log is full, publishers wait; nothing is lost, and no other client waits.

One worker is stopped for a while, so that messages for it fill the log.
"""

from functools import partial
from pathlib import Path

from sbus.limits import Limits
from tests.support.bus import running_bus
from tests.support.order import assert_one_order
from tests.support.processes import clients_on_each, stopped, worker_pids
from tests.support.raw_client import RawClient
from tests.support.threads import Task

HOLD_SECONDS = 0.3


def publish(client: RawClient, publisher: int, count: int, payload_bytes: int) -> None:
    for number in range(count):
        head = b"%d %d " % (publisher, number)
        client.pub(b"k", head + bytes(payload_bytes - len(head)))


def read(client: RawClient, count: int, into: list[bytes]) -> None:
    """Keep the heads of this many messages."""
    while len(into) < count:
        into.append(client.receive()[:30])


def test_publishers_wait_for_a_slow_worker_and_nothing_is_lost(tmp_path: Path) -> None:
    publishers, each, payload_bytes = 4, 25, 400_000
    options = ["backlog_bytes_max=100000000", "user_backlog_bytes_max=1000000000"]
    limits = [word for option in options for word in ("--limit", option)]
    with (
        running_bus(tmp_path, *limits, workers=3) as bus,
        clients_on_each(bus, 3, 4) as places,
    ):
        subscribers = [places[worker][0] for worker in range(3)]
        for subscriber in subscribers:
            subscriber.sub(b"k")
            subscriber.whoami()
        sources = [places[0][1], places[1][1], places[0][2], places[1][2]]
        received: list[list[bytes]] = [[] for _ in subscribers]
        readers = [
            Task(partial(read, subscriber, publishers * each, into))
            for subscriber, into in zip(subscribers, received, strict=True)
        ]
        with stopped(worker_pids(bus)[2]):
            writers = [
                Task(partial(publish, source, at, each, payload_bytes))
                for at, source in enumerate(sources)
            ]
            assert not any(writer.ends_within(HOLD_SECONDS) for writer in writers)
            assert len(received[0]) * payload_bytes < Limits().log_bytes + 4 * 512 * 1024
            assert_served_locally(places[0][3])
        for task in (*writers, *readers):
            task.join()
        for sequence in received:
            for publisher in range(publishers):
                own = [head for head in sequence if head.startswith(b"MSG k\0%d " % publisher)]
                assert [int(head.split(b" ")[2].rstrip(b"\0")) for head in own] == list(range(each))
        assert_one_order(received)
        assert received[0] == received[1] == received[2]


def assert_served_locally(client: RawClient) -> None:
    """Messages that do not concern the stopped worker are delivered although the log is full."""
    client.sub(b"local")
    for number in range(100):
        client.pub(b"local", b"%d" % number)
        assert client.receive() == b"MSG local\0%d" % number


def test_small_messages_fill_the_log_too(tmp_path: Path) -> None:
    """Barriers of the clients that are not concerned are answered all the while."""
    small = ("batch_bytes_max=8192", "packet_bytes_max=8192", "log_bytes=262144")
    options = [option for limit in small for option in ("--limit", limit)]
    each = 5_000
    with (
        running_bus(tmp_path, *options, workers=2) as bus,
        clients_on_each(bus, 2, 3) as ((source, second, bystander), (subscriber, *_)),
    ):
        subscriber.sub(b"k")
        subscriber.whoami()
        with stopped(worker_pids(bus)[1]):
            writers = [
                Task(partial(publish, client, at, each, 50))
                for at, client in enumerate((source, second))
            ]
            assert not any(writer.ends_within(HOLD_SECONDS) for writer in writers)
            for _ in range(100):
                bystander.whoami()
        received: list[bytes] = []
        reader = Task(partial(read, subscriber, 2 * each, received))
        for task in (*writers, reader):
            task.join()
        for publisher in range(2):
            own = [head for head in received if head.startswith(b"MSG k\0%d " % publisher)]
            assert [int(head.split(b" ")[2].rstrip(b"\0")) for head in own] == list(range(each))
        assert subscriber.sync() == []

"""What a reader of a stream takes for missing, and what it reads again."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import nats.js.errors
import pytest

from sbus.bridge import durable
from sbus.bridge.configuration import parse_configuration
from sbus.bridge.durable import StreamReader
from sbus.bridge.durable_messages import ACKED
from sbus.bridge.ends import End, encode_end
from sbus.bridge.envelope import HEADER, Crossing
from sbus.bridge.ledger import Gap
from sbus.bridge.status import DurableStatus

CONFIG = """
[bridge]
origin = "own"
state = "{state}"
[channels.all]
patterns = ["all/"]
[channels.all.durable]
[links.office]
servers = ["nats://x"]
import = ["all"]
"""
LOST = Gap("e", 1, None)


class Stopped(Exception):
    pass


class Reader(StreamReader):
    """Notes the places in the stream of what it gets, and what it delivers."""

    def __init__(self, directory: Path) -> None:
        plan = parse_configuration(CONFIG.format(state=directory).encode(), "bus")
        super().__init__(DurableStatus("all"), "sbus", plan, lambda key, text: None)
        self.got: list[int] = []
        self.delivered: list[tuple[str, int | Gap]] = []
        self.reads_back_to = 0

    async def deliver(self, batch: list[Any]) -> None:
        self.got += [msg.metadata.sequence.stream for msg in batch]
        for origin, items in (*map(self.feed, batch), *self.due()):
            self.delivered += [(origin, place_of(item)) for item in items]
            if ledger := self.ledgers.get(origin):
                self.progress.note(origin, ledger.epoch, ledger.next - 1)
        self.progress.save()
        if batch:
            after = self.first_held(self.got[-1] + 1)
            self.progress.next_in_stream = min(after, self.reads_back_to or after)


def place_of(item: Crossing | Gap) -> int | Gap:
    return item if isinstance(item, Gap) else item.envelope.number


class Server:
    """Has a stream. Delivers these places of it to its first consumers, and then all from where one
    begins."""

    def __init__(self, stream: dict[int, Any], *deliveries: list[int], last: int = 0) -> None:
        self._stream = stream
        self._deliveries = list(deliveries)
        self.first = min(stream, default=last + 1)
        self.last = max([last, *stream])
        self.is_silent = False
        self.is_made = True
        self.created = "today"
        self.ends: list[Any] = []
        self.consumers = 0

    def jetstream(self, timeout: float) -> "Server":
        return self

    async def stream_info(self, name: str) -> Any:
        if not self.is_made:
            self.is_made = True
            raise nats.js.errors.NotFoundError
        state = SimpleNamespace(first_seq=self.first, last_seq=self.last)
        return SimpleNamespace(state=state, created=self.created)

    async def get_msg(self, name: str, seq: int, subject: str, next: bool) -> Any:
        assert next
        following = [it for it in self._stream if it >= seq]
        if not following:
            raise nats.js.errors.NotFoundError
        return SimpleNamespace(seq=min(following))

    async def subscribe(self, subject: str, cb: Any) -> "Server":
        for end in self.ends:
            await cb(end)
        return self

    async def unsubscribe(self) -> None:
        pass

    async def pull_subscribe(self, subject: str, stream: str, config: Any) -> "Server":
        self._begin = config.opt_start_seq
        self.consumers += 1
        return self

    async def fetch(self, count: int, **limits: float) -> list[Any]:
        await asyncio.sleep(0)
        if self.is_silent:
            raise TimeoutError
        if self._begin > self.last + 2:
            raise Stopped
        found = [it for it in sorted(self._stream) if it >= self._begin]
        found = self._deliveries.pop(0) if self._deliveries else found
        self._begin = found[-1] + 1 if found else self._begin + 1
        if not found:
            raise TimeoutError
        return [self._stream[it] for it in found]


def message(place: int, origin: str = "own", number: int = 1, acked: int = 0) -> Any:
    async def ack() -> None:
        pass

    return SimpleNamespace(
        subject=f"sbus.d.all.{origin}.all.x",
        headers={HEADER: f"1 e {number} {origin} h 7 p", ACKED: str(acked)},
        data=b"",
        metadata=SimpleNamespace(sequence=SimpleNamespace(stream=place)),
        ack=ack,
    )


def end(origin: str, number: int, sequence: int, epoch: str = "e") -> Any:
    headers = encode_end(End(epoch, number, sequence), origin)
    return SimpleNamespace(subject=f"sbus.e.all.{origin}", headers=headers)


def stream(*places: int) -> dict[int, Any]:
    return {place: message(place) for place in places}


def read(reader: Reader, server: Any) -> None:
    for _ in range(20):
        try:
            asyncio.run(reader.run(server))
        except nats.errors.Error:
            continue
        except Stopped:
            return
    pytest.fail("it does not come to an end")


def reader_at(directory: Path, place: int) -> Reader:
    """One that has read everything before this."""
    reader = Reader(directory)
    reader.progress.begin("today", place, 1)
    return reader


@pytest.fixture(autouse=True)
def _look_for_more_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "_SILENCE_SECONDS", 0.0)


# -- what servers leave out ------------------------------------------------------------------------
def test_what_was_left_out_once_comes_in_its_place(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 1)
    read(reader, Server(stream(*range(1, 10)), [1, 2, 5], [3, 4, 5, 6, 9]))
    assert reader.got == list(range(1, 10))
    assert not reader.progress.has_missed


def test_what_is_left_out_and_not_there_was_removed(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 1)
    read(reader, Server(stream(1, 2, 5, 6)))
    assert reader.got == [1, 2, 5, 6]
    assert reader.progress.has_missed


def test_several_places_that_are_left_out_end_although_each_time_is_read_from_before_them(
    tmp_path: Path,
) -> None:
    reader = reader_at(tmp_path, 1)
    reader.reads_back_to = 1
    read(reader, Server(stream(1, 2, 5, 8, 9)))
    assert reader.got[-1] == 9


def test_what_the_stream_has_removed_is_not_read_again(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 1)
    server = Server(stream(7, 8))
    read(reader, server)
    assert (reader.got, server.consumers) == ([7, 8], 1)
    assert reader.progress.has_missed


def test_a_server_that_brings_nothing_of_what_it_has_is_asked_anew(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 1)
    server: Any = Server(stream(1, 2))
    server.is_silent = True
    with pytest.raises(nats.errors.Error, match="bring nothing"):
        asyncio.run(reader.run(server))
    server.is_silent = False
    read(reader, server)
    assert reader.got == [1, 2]


def test_what_is_missing_is_looked_for_once_before_it_is_a_gap(tmp_path: Path) -> None:
    async def feed(reader: Reader) -> None:
        reader.feed(message(5_001, "a", 1, 0))
        with pytest.raises(nats.errors.Error, match="read again"):
            reader.feed(message(5_004, "a", 4, 3))
        assert 1 < reader.progress.next_in_stream < 1_000
        assert reader.feed(message(5_004, "a", 4, 3))[1][0] == Gap("e", 2, 2)

    asyncio.run(feed(reader_at(tmp_path, 5_001)))


def test_to_look_for_what_is_missing_leaves_nothing_out_that_waits(tmp_path: Path) -> None:
    async def feed(reader: Reader) -> None:
        reader.feed(message(5_001, "a", 1, 0))
        reader.feed(message(5_003, "a", 3, 0))
        with pytest.raises(nats.errors.Error, match="read again"):
            reader.feed(message(15_000, "a", 9, 8))
        assert reader.progress.next_in_stream == 5_002

    reader = reader_at(tmp_path, 5_002)
    reader.progress.note("a", "e", 0)
    asyncio.run(feed(reader))


def test_what_has_been_read_before_is_not_missed_when_it_is_removed(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 1)
    read(reader, Server({at: message(at, "a", at, at - 1) for at in range(1, 101)}))
    kept = {at: message(at, "a", at, at - 1) for at in range(90, 101)}
    read(reader, Server({**kept, 101: message(101, "a", 102, 101)}))
    assert reader.delivered[-2:] == [("a", Gap("e", 101, 1)), ("a", 102)]
    assert reader.got[-12:] == list(range(90, 102)), "it has looked back"
    assert not reader.progress.has_missed


def test_removed_messages_at_the_end_are_not_waited_for(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 1)
    server = Server({at: message(at, "a", at, at - 1) for at in (1, 2)}, last=5)
    server.ends = [end("a", 5, 5)]
    read(reader, server)
    assert reader.delivered == [("a", 1), ("a", 2), ("a", Gap("e", 3, 3))]


@pytest.mark.parametrize("last", [3, 9])
def test_a_stream_that_is_made_anew_is_read_from_its_beginning(tmp_path: Path, last: int) -> None:
    reader = reader_at(tmp_path, 1)
    read(reader, Server(stream(*range(1, 6))))
    another = Server({at: message(at, "b", at, at - 1) for at in range(1, last + 1)})
    another.created = "tomorrow"
    read(reader, another)
    assert reader.delivered == [("b", number) for number in range(1, last + 1)]


def test_a_stream_that_is_made_anew_is_noticed_while_it_is_read(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 6)
    server: Any = Server(stream(1, 2))
    reader._expected = 6
    with pytest.raises(nats.errors.Error, match="not what it was"):
        asyncio.run(reader._find_more(server))


# -- the first start -------------------------------------------------------------------------------
def test_the_first_start_delivers_what_is_sent_from_then_on(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    server = Server({at: message(at, "a", at + 10, 10) for at in (1, 2, 3)})
    read(reader, server)
    assert reader.delivered == []
    more = {at: message(at, "a", number, 13) for at, number in ((4, 15), (5, 14), (6, 16))}
    read(reader, Server({3: message(3, "a", 13, 10), **more}))
    assert reader.delivered == [("a", 14), ("a", 15), ("a", 16)]


def test_what_was_sent_again_at_the_first_start_is_delivered(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    read(reader, Server({1: message(1, "a", 10, 8)}))
    sent = {2: message(2, "a", 9, 8), 3: message(3, "a", 11, 10)}
    read(reader, Server({1: message(1, "a", 10, 8), **sent}))
    assert reader.delivered == [("a", 9), ("a", 11)]


def test_of_a_stream_that_is_made_later_everything_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_STREAM_RETRY_SECONDS", 0.0)
    reader = Reader(tmp_path)
    server = Server({1: message(1, "a", 1), 2: message(2, "a", 2)})
    server.is_made = False
    read(reader, server)
    assert reader.delivered == [("a", 1), ("a", 2)]


# -- what the stream has removed -------------------------------------------------------------------
def began(directory: Path) -> None:
    """An importer began when the stream had one message, and ended."""
    read(Reader(directory), Server(stream(1)))


def test_of_a_new_origin_is_told_if_the_stream_has_removed_anything(tmp_path: Path) -> None:
    began(tmp_path)
    reader = Reader(tmp_path)
    read(reader, Server({5: message(5, "a", 4, 3)}))
    assert reader.delivered == [("a", LOST), ("a", 4)]


def test_of_a_new_origin_is_not_told_if_everything_was_read(tmp_path: Path) -> None:
    began(tmp_path)
    reader = Reader(tmp_path)
    read(reader, Server({2: message(2, "a", 4, 3)}))
    assert reader.delivered == [("a", 4)]


def test_an_end_tells_what_was_removed_of_a_known_origin(tmp_path: Path) -> None:
    began(tmp_path)
    read(Reader(tmp_path), Server({2: message(2, "a", 1)}))
    reader = Reader(tmp_path)
    server = Server({}, last=5)
    server.ends = [end("a", 3, 4)]
    read(reader, server)
    assert reader.delivered == [("a", Gap("e", 2, 2))]
    again = Reader(tmp_path)
    read(again, server)
    assert again.delivered == []


def test_an_end_tells_that_something_was_removed_of_a_new_origin(tmp_path: Path) -> None:
    began(tmp_path)
    reader = Reader(tmp_path)
    server = Server({}, last=5)
    server.ends = [end("a", 3, 4), end("own", 3, 4), end("silent", 0, 0)]
    read(reader, server)
    assert reader.delivered == [("a", LOST)]


def test_an_end_of_what_was_sent_before_the_first_start_tells_of_no_loss(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    server = Server({}, last=5)
    server.ends = [end("a", 3, 5)]
    read(reader, server)
    assert reader.delivered == []
    read(reader, Server({9: message(9, "a", 6, 5)}))
    assert reader.delivered == [("a", Gap("e", 4, 2)), ("a", 6)]


def test_an_end_waits_until_the_stream_was_read_up_to_it(tmp_path: Path) -> None:
    began(tmp_path)
    reader = Reader(tmp_path)
    server = Server({at: message(at, "a", at, 1) for at in (2, 3, 4)}, [2], [3, 4])
    server.ends = [end("a", 4, 4)]
    read(reader, server)
    assert reader.delivered == [("a", 2), ("a", 3), ("a", 4)]


def test_an_end_counts_in_a_stream_that_has_lost_its_last_messages(tmp_path: Path) -> None:
    reader = reader_at(tmp_path, 1)
    read(reader, Server({1: message(1, "a", 1), 2: message(2, "a", 2, 1)}))
    server = Server({1: message(1, "a", 1), 2: message(2, "a", 2, 1)})
    server.ends = [end("a", 5, 5)]
    read(reader, server)
    assert reader.delivered == [("a", 1), ("a", 2), ("a", Gap("e", 3, 3))]


def test_an_end_of_a_new_epoch_is_a_gap(tmp_path: Path) -> None:
    began(tmp_path)
    reader = Reader(tmp_path)
    server = Server({2: message(2, "a", 1)})
    server.ends = [end("a", 0, 2, "f")]
    read(reader, server)
    assert reader.delivered == [("a", 1), ("a", Gap("e", 2, None))]


@pytest.mark.parametrize("sequence", ["", "x", "1x", "-1", "9999999999999999999"])
def test_an_end_without_a_sequence_is_refused(tmp_path: Path, sequence: str) -> None:
    began(tmp_path)
    reader = Reader(tmp_path)
    server = Server({}, last=5)
    bad = end("a", 3, 4)
    bad.headers["Sbus-Sequence"] = sequence
    server.ends = [bad]
    read(reader, server)
    assert reader.delivered == []

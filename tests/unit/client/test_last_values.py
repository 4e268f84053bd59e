"""Store and joiner of last values against a plain list of messages, in the one order of a bus.

Here the bus is a list. The service and the joiner read it, each as far as a schedule says, and the
answers go into it where the service has got to when it reads the request.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.client.message_queue import Lost, MessageQueue, NotKept
from sbus.client.snapshot import Joining
from sbus.client.value_store import ValueStore
from sbus.errors import ProtocolViolation, RequestFailed
from sbus.protocol.keys import SLASH
from sbus.protocol.last_values import Part, encode_snapshot, parse_part, request_key
from sbus.protocol.packets import Message
from sbus.protocol.request_reply import encode_request

OWN_KEY = b"!/cred/5/6/7"
REPLY_KEY = b"!/cred/5/6/7/reply/0a"
Items = list[Message | Lost]


def store_of(*patterns: bytes, keys_max: int = 1_000, bytes_max: int = 1_000_000) -> ValueStore:
    return ValueStore(patterns, SLASH, keys_max=keys_max, bytes_max=bytes_max)


def snapshot_of(store: ValueStore, pattern: bytes) -> dict[bytes, bytes]:
    """What a joiner receives now, by key."""
    return {item.key: item.payload for item in joined(store, pattern) if isinstance(item, Message)}


def joined(store: ValueStore, pattern: bytes) -> Items:
    joining = Joining(pattern, OWN_KEY, messages_max=1_000)
    request = Message(joining.request_key, joining.request())
    joining.feed(request)
    for key, payload in store.feed(request):
        joining.feed(Message(key, payload))
    return moved(joining)


def moved(joining: Joining) -> Items:
    assert joining.is_complete
    queue = MessageQueue[Message | Lost](losses="report", messages_max=9_999, bytes_max=9_999_999)
    joining.move_to(queue)
    return queue.take_many(9_999)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["serve", "read", "lose"]), st.integers(1, 5)),
    ),
    max_size=40,
)


@given(steps)
def test_the_snapshot_and_what_follows_are_the_whole(history: list[tuple[str, int]]) -> None:
    order: list[Message] = []
    store = store_of(b"k/*")
    joining = Joining(b"k/*", OWN_KEY, messages_max=1_000)
    places = {"serve": 0, "read": 0}

    def advance(what: str, count: int) -> None:
        for _ in range(count):
            if joining.must_ask:
                order.append(Message(joining.request_key, joining.request()))
            if places[what] == len(order):
                return
            message = order[places[what]]
            places[what] += 1
            if what == "read":
                joining.feed(message)
            elif message.key != joining.reply_key:
                order.extend(Message(*answer) for answer in store.feed(message))

    for what, number in history:
        if what == "publish":
            order.append(Message(b"k/%d" % number, b"%d" % len(order)))
        elif what == "lose":  # the joiner misses some, and learns how many
            count = min(number, len(order) - places["read"])
            places["read"] += count
            if joining.is_complete:
                places["read"] -= count
            elif count:
                joining.feed(Lost(count))
        else:
            advance(what, number)
    for _ in range(3):
        advance("serve", 1_000)
        advance("read", 1_000)
    store.check_invariants()
    published = [message for message in order if message.key.startswith(b"k/")]
    received = moved(joining)
    values: dict[bytes, bytes] = {}
    whole: Items = []
    for number in range(len(published) + 1):  # there is a place at which the snapshot fits
        whole = [*(Message(*value) for value in values.items()), *published[number:]]
        if whole == received:
            break
        if number < len(published):
            values.pop(published[number].key, None)
            values[published[number].key] = published[number].payload
    assert received == whole


def test_a_joiner_of_less_gets_less() -> None:
    store = store_of(b"a/", b"b")
    for key in (b"a/1", b"a/2/x", b"b", b"a/1"):
        store.feed(Message(key, b"of " + key))
    assert snapshot_of(store, b"a/*") == {b"a/1": b"of a/1"}
    assert list(snapshot_of(store, b"a/")) == [b"a/2/x", b"a/1"]
    with pytest.raises(RequestFailed, match="does not keep"):
        snapshot_of(store, b"b/")


def test_beyond_its_bounds_a_store_forgets_the_oldest_and_says_so() -> None:
    store = store_of(b"", keys_max=3, bytes_max=20)
    for number in range(5):
        store.feed(Message(b"%d" % number, b"x"))
        store.check_invariants()
    first, *rest = joined(store, b"")
    assert first == NotKept(2)
    assert [item.key for item in rest if isinstance(item, Message)] == [b"2", b"3", b"4"]
    store.feed(Message(b"long", b"x" * 16))
    store.check_invariants()
    assert joined(store, b"") == [NotKept(5), Message(b"long", b"x" * 16)]
    store.feed(Message(b"longer", b"x" * 16))
    assert joined(store, b"") == [NotKept(7)]


@pytest.mark.parametrize(("counts", "missing"), [((3, 4), 7), ((3, None, 4), None)])
def test_what_the_service_has_missed_is_told(
    counts: tuple[int | None, ...], missing: int | None
) -> None:
    store = store_of(b"")
    for count in counts:
        store.feed(Lost(count))
    assert joined(store, b"") == [NotKept(missing)]


def test_a_plain_message_to_the_service_is_none_of_its_values() -> None:
    store = store_of(b"")
    assert store.feed(Message(request_key(b""), b"no request")) == []
    assert snapshot_of(store, b"") == {}


def test_two_services_answer_and_one_is_enough() -> None:
    stores = [store_of(b"", bytes_max=1_000_000) for _ in range(2)]
    joining = Joining(b"", OWN_KEY, messages_max=1_000)
    for store in stores:
        for number in range(3):
            store.feed(Message(b"%d" % number, bytes(30_000)))
    request = Message(joining.request_key, joining.request())
    joining.feed(request)
    answers = [[Message(*answer) for answer in store.feed(request)] for store in stores]
    assert [len(parts) for parts in answers] == [2, 2]
    for parts in zip(*answers, strict=True):
        for part in parts:
            joining.feed(part)
    received = [item.key for item in moved(joining) if isinstance(item, Message)]
    assert received == [b"0", b"1", b"2"]


def test_a_joiner_asks_again_when_too_much_follows() -> None:
    joining = Joining(b"", OWN_KEY, messages_max=2)
    joining.feed(Message(joining.request_key, joining.request()))
    for _ in range(3):
        assert not joining.must_ask
        joining.feed(Message(b"a", b""))
    assert joining.must_ask


@given(st.lists(st.tuples(st.binary(), st.binary())), st.one_of(st.none(), st.integers(0, 9)))
def test_a_part_comes_out_as_it_went_in(
    values: list[tuple[bytes, bytes]], missing: int | None
) -> None:
    (part,) = encode_snapshot(values, b"s", missing)
    assert parse_part(part) == Part(True, b"s", 0, missing, values)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"end s 0\0\x90",
        b"end s ? 0\0\x90",
        b"end s 0 0\0x",
        b"all s 0 0\0\x90",
        b"end s 0 -1\0",
    ],
)
def test_a_part_that_no_service_sends_is_an_error(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse_part(payload)


def test_parts_out_of_order_are_an_error() -> None:
    joining = Joining(b"", OWN_KEY, messages_max=2)
    request = joining.request()
    token = request.split(b"\0")[1]
    joining.feed(Message(joining.request_key, request))
    with pytest.raises(ProtocolViolation, match="order"):
        joining.feed(Message(joining.reply_key, token + b"\0end s 1 0\0\x90"))


def test_answers_to_others_are_ignored() -> None:
    joining = Joining(b"", OWN_KEY, messages_max=2)
    joining.feed(Message(joining.request_key, joining.request()))
    joining.feed(Message(joining.request_key, encode_request(REPLY_KEY, b"t", b"")))
    joining.feed(Message(joining.reply_key, b"other\0end s 0 0\0\x90"))
    assert not joining.is_complete

"""Store and joiner of last values against a plain list of messages, in the one order of a bus.

Here the bus is a list. The service and the joiner read it, each as far as a schedule says, and the
answers go into it where the service has got to when it reads the request.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.client.message_queue import Lost, MessageQueue, NotKept, Reconnected
from sbus.client.receipts import Receipts
from sbus.client.snapshot import Joining
from sbus.client.value_store import ValueStore, requests_of
from sbus.errors import ConnectionInterrupted, PacketRefused, ProtocolViolation, RequestFailed
from sbus.protocol.keys import SLASH
from sbus.protocol.last_values import Part, encode_snapshot, parse_part, request_key
from sbus.protocol.packets import Message, Sender, encode_publish
from sbus.protocol.receipts import Receipt
from sbus.protocol.request_reply import Envelope, encode_answer, encode_request, parse_request

OWN_KEY = b"!/cred/5/6/7"
OWN_UID = 6
REPLY_KEY = b"!/cred/5/6/7/reply/0a"
Items = list[Message | Lost]


def store_of(
    *patterns: bytes,
    keys_max: int = 1_000,
    bytes_max: int = 1_000_000,
    packet_bytes_max: int = 409_600,
) -> ValueStore:
    bounds = {"keys_max": keys_max, "bytes_max": bytes_max, "packet_bytes_max": packet_bytes_max}
    return ValueStore(patterns, SLASH, **bounds)


def joining_of(
    pattern: bytes, *, messages_max: int = 1_000, bytes_max: int = 1_000_000, may_wait: bool = True
) -> Joining:
    bounds = {"messages_max": messages_max, "bytes_max": bytes_max}
    return Joining(pattern, OWN_KEY, uids={OWN_UID}, **bounds, may_wait=may_wait)


def published(key: bytes, payload: bytes, *, client: int = 1, uid: int = OWN_UID) -> Message:
    """As it comes to a joiner, with its sender."""
    return Message(key, payload, Sender(1, client, 5, uid, 7))


def answers_of(store: ValueStore, request: Message) -> list[Message]:
    envelope = parse_request(request)
    assert envelope is not None
    return [published(*answer) for answer in store.answers(envelope)]


def snapshot_of(store: ValueStore, pattern: bytes) -> dict[bytes, bytes]:
    """What a joiner receives now, by key."""
    return {item.key: item.payload for item in joined(store, pattern) if isinstance(item, Message)}


def joined(store: ValueStore, pattern: bytes) -> Items:
    joining = joining_of(pattern, may_wait=False)
    request = Message(joining.request_key, joining.request())
    joining.feed(request)
    for answer in answers_of(store, request):
        joining.feed(answer)
    return moved(joining)


def moved(joining: Joining) -> Items:
    assert joining.is_complete
    queue = MessageQueue[Message | Lost](losses="report", messages_max=9_999, bytes_max=9_999_999)
    joining.move_to(queue, lambda message: message)
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
    joining = joining_of(b"k/*")
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
            elif message.key == joining.request_key:
                order.extend(answers_of(store, message))
            else:
                store.feed(message)

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


def test_a_plain_message_to_the_service_is_none_of_its_values() -> None:
    store = store_of(b"")
    store.feed(Message(request_key(b""), b"no request"))
    assert snapshot_of(store, b"") == {}


def test_two_services_answer_and_one_is_enough() -> None:
    stores = [store_of(b"", bytes_max=1_000_000) for _ in range(2)]
    joining = joining_of(b"")
    for store in stores:
        for number in range(3):
            store.feed(Message(b"%d" % number, bytes(30_000)))
    request = Message(joining.request_key, joining.request())
    joining.feed(request)
    answers = [answers_of(store, request) for store in stores]
    assert [len(parts) for parts in answers] == [2, 2]
    for parts in zip(*answers, strict=True):
        for part in parts:
            joining.feed(part)
    received = [item.key for item in moved(joining) if isinstance(item, Message)]
    assert received == [b"0", b"1", b"2"]


@pytest.mark.parametrize("bounds", [{"messages_max": 2}, {"bytes_max": 2_000}])
def test_a_joiner_asks_again_when_too_much_follows(bounds: dict[str, Any]) -> None:
    joining = joining_of(b"", **bounds)
    joining.feed(Message(joining.request_key, joining.request()))
    for _ in range(3):
        assert not joining.must_ask
        joining.feed(Message(b"a", bytes(1_000)))
    assert joining.must_ask


@given(st.lists(st.tuples(st.binary(), st.binary())), st.one_of(st.none(), st.integers(0, 9)))
def test_a_part_comes_out_as_it_went_in(
    values: list[tuple[bytes, bytes]], missing: int | None
) -> None:
    (part,) = encode_snapshot(values, b"s", missing, 409_600)
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


def asking(**options: Any) -> tuple[Joining, Envelope]:
    """A joiner of everything that has received its request."""
    joining = joining_of(b"", **options)
    request = Message(joining.request_key, joining.request())
    joining.feed(request)
    envelope = parse_request(request)
    assert envelope is not None
    return joining, envelope


def answer(
    joining: Joining,
    request: Envelope,
    payload: bytes,
    *,
    fails: bool = False,
    client: int = 1,
    uid: int = OWN_UID,
) -> None:
    content = encode_answer(request, payload, is_failure=fails)
    joining.feed(published(request.reply_key, content, client=client, uid=uid))


@pytest.mark.parametrize("wrong", [b"junk", b"end x 7 0\0\x90", b"end x 0 0\0no values"])
def test_wrong_parts_of_somebody_else_spoil_no_snapshot(wrong: bytes) -> None:
    joining, request = asking()
    for part in (b"more s 0 0\0\x91\x92\xc4\x01a\xc4\x01b", wrong, b"end s 1 0\0\x90"):
        answer(joining, request, part)
    assert moved(joining) == [Message(b"a", b"b")]


@pytest.mark.parametrize("names", [b"s", b"stuvwxyz"])
def test_answers_without_end_are_an_error(names: bytes) -> None:
    joining, request = asking(bytes_max=20_000)
    with pytest.raises(RequestFailed, match="inbox_bytes_max"):  # noqa: PT012 (at one of the parts)
        for number in range(100):
            name = names[number % len(names) :][:1]
            answer(joining, request, b"more %b %d 0\0\x90" % (name, number // len(names)))


@pytest.mark.parametrize("receipt_first", [False, True])
def test_a_failure_counts_when_nobody_else_may_answer(receipt_first: bool) -> None:
    def steps(joining: Joining, request: Envelope, clients: int) -> None:
        receipt = Receipt(sent=clients - 1, waiting=1, lost=3)
        if receipt_first:
            joining.feed_receipt(receipt)
        answer(joining, request, b"not all of that", fails=True)
        if not receipt_first:
            joining.feed_receipt(receipt)

    with pytest.raises(RequestFailed, match="not all of that"):
        steps(*asking(), clients=2)
    joining, request = asking()
    steps(joining, request, clients=3)
    answer(joining, request, b"end s 0 0\0\x90")
    assert moved(joining) == []
    assert [str(failure) for failure in joining.failures.values()] == ["not all of that"]


STRANGER = 4
SNAPSHOT = b"end s 0 0\0\x91\x92\xc4\x01a\xc4\x01b"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("payload", [SNAPSHOT, b"ask again", b"more s 0 0\0\x90"])
def test_an_answer_of_another_user_counts_as_none(payload: bytes, fails: bool) -> None:
    joining, request = asking(bytes_max=2_000)
    for _ in range(10):
        answer(joining, request, payload, fails=fails, client=2, uid=STRANGER)
    assert not joining.is_complete
    assert not joining.must_ask
    answer(joining, request, SNAPSHOT)
    assert moved(joining) == [Message(b"a", b"b")]


def test_a_client_that_fails_twice_does_not_stand_for_two() -> None:
    joining, request = asking()
    joining.feed_receipt(Receipt(sent=3, waiting=0, lost=0))
    for _ in range(2):
        answer(joining, request, b"no", fails=True)
    answer(joining, request, SNAPSHOT, client=2)
    assert moved(joining) == [Message(b"a", b"b")]


def test_a_joiner_that_is_not_told_senders_says_so() -> None:
    joining, request = asking()
    with pytest.raises(RequestFailed, match="sender/off"):
        joining.feed(Message(request.reply_key, encode_answer(request, SNAPSHOT)))


def test_a_request_that_may_be_lost_is_sent_again() -> None:
    for error in (PacketRefused("packets-lost", ""), ConnectionInterrupted("")):
        joining, _ = asking()
        joining.feed_receipt(error)
        assert joining.must_ask
    with pytest.raises(PacketRefused, match="denied"):
        asking()[0].feed_receipt(PacketRefused("denied", ""))


def test_of_many_requests_of_one_client_the_newest_count_and_others_are_asked_again() -> None:
    def message(client: int, number: int) -> Message:
        payload = encode_request(REPLY_KEY, b"%d" % number, b"")
        return Message(request_key(b""), payload, Sender(1, client, 5, 6, 7))

    items = [Message(b"a", b""), message(2, 1), *(message(1, number) for number in range(2, 12))]
    items.append(Message(request_key(b""), b"junk", Sender(1, 1, 5, 6, 7)))
    requests = requests_of(items)
    put_off = [requests[at].is_one_too_many for at in range(1, 12)]
    assert put_off == [False, *6 * [True], *4 * [False]]
    assert requests.keys() == set(range(1, 12))
    assert requests[5].put_off() == (REPLY_KEY, b"5!\0ask again")


def test_a_joiner_that_is_put_off_asks_again() -> None:
    joining, request = asking(may_wait=False)
    answer(joining, request, b"more s 0 0\0\x91\x92\xc4\x01a\xc4\x01b")
    answer(joining, request, b"ask again", fails=True)
    assert joining.must_ask
    again = Message(joining.request_key, joining.request())
    joining.feed(again)
    for message in answers_of(store_of(b""), again):
        joining.feed(message)
    assert moved(joining) == []


# -- what is missing -------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 1_000), max_size=30))
def test_every_part_fits_a_packet_and_what_fits_none_is_missing(sizes: list[int]) -> None:
    store = store_of(b"", packet_bytes_max=1_000)
    for number, size in enumerate(sizes):
        store.feed(Message(b"%02d" % number, bytes(size)))
    reply_key = b"!/cred/4294967295/4294967295/4294967295/reply/" + b"x" * 32
    payload = encode_request(reply_key, b"t" * 62, b"")
    for part in answers_of(store, Message(request_key(b""), payload)):
        packet = encode_publish(part.key, part.payload)
        assert len(Receipts().open(packet).packet) + 20 <= 1_000
    received = joined(store, b"")
    kept = [item for item in received if isinstance(item, Message)]
    assert NotKept(len(sizes) - len(kept)) in [*received, NotKept(0)]
    short = [Message(b"%02d" % at, bytes(size)) for at, size in enumerate(sizes) if size < 450]
    assert [message for message in kept if len(message.payload) < 450] == short


def test_a_key_is_missing_until_it_has_a_new_value_and_for_its_joiners_only() -> None:
    store = store_of(b"", keys_max=2)
    for key in (b"a", b"b", b"c"):
        store.feed(Message(key, b""))
    assert joined(store, b"a") == [NotKept(1)]
    assert joined(store, b"b") == [Message(b"b", b"")]
    store.feed(Message(b"a", b"new"))
    assert joined(store, b"a") == [Message(b"a", b"new")]
    assert joined(store, b"b") == [NotKept(1)]


def test_a_gap_is_told_while_values_from_before_it_are_kept() -> None:
    store = store_of(b"")
    for key in (b"a/1", b"a/2", b"b"):
        store.feed(Message(key, b"old"))
    store.feed(Reconnected(None, ""))
    store.feed(Message(b"a/1", b"new"))
    assert joined(store, b"a/*")[0] == NotKept(None)
    assert joined(store, b"b") == [NotKept(None), Message(b"b", b"old")]
    assert joined(store, b"a/1") == [Message(b"a/1", b"new")]
    assert joined(store, b"c") == [NotKept(None)]
    store.feed(Message(b"a/2", b"new"))
    assert joined(store, b"a/*") == [Message(b"a/1", b"new"), Message(b"a/2", b"new")]
    store.feed(Message(b"b", b"new"))
    assert joined(store, b"c") == []


def test_many_gaps_are_told_together() -> None:
    store = store_of(b"")
    store.feed(Message(b"old", b""))
    for number in range(200):
        store.feed(Lost(1))
        store.feed(Message(b"new", b"%d" % number))
    assert joined(store, b"*")[0] == NotKept(200)
    assert joined(store, b"new") == [Message(b"new", b"199")]


def test_so_many_missing_keys_are_remembered() -> None:
    store = store_of(b"", keys_max=1)
    for number in range(2_000):
        store.feed(Message(b"%d" % number, b""))
    assert joined(store, b"")[0] == NotKept(1_024)
    assert joined(store, b"1999") == [Message(b"1999", b"")]

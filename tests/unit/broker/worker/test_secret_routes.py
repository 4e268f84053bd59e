"""Secret messages in the router: every pair of ids, ends of processes, and nobody else, ever."""

from collections.abc import Callable
from itertools import product
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.secret_recipient import ProcessLifetimeGuard, SecretRecipient
from sbus.broker.delivery.send_times import SendTimeSpent
from sbus.broker.worker.router import Router
from sbus.errors import ClientFault, Misbehaviour, Refusal
from sbus.limits import Limits
from sbus.protocol.keys import SLASH, check_pattern
from sbus.protocol.secret_keys import begins_secret
from sbus.unix.credentials import Credentials
from sbus.unix.peer_process import PeerProcess
from sbus.unix.user_namespace import untranslated_ids
from tests.unit.routing.specification import matches_as_any_pattern_does

ME = Credentials(gid=10, uid=20, pid=30)
OTHER = Credentials(gid=10, uid=20, pid=31)

_Ids = tuple[int, int] | None


class Process:
    """A process at the kernel's edge: it ends when the test says so."""

    def __init__(self) -> None:
        self.ended = self.closed = False
        self.saved: tuple[int, int] | None = None
        self.looks = 0
        self.failure: OSError | None = None

    def watch(self) -> None:
        if self.failure is not None:
            raise self.failure

    def has_ended(self) -> bool:
        return self.ended

    def saved_ids(self) -> tuple[int, int] | None:
        self.looks += 1
        return self.saved

    def close(self) -> None:
        self.closed = True


class Collector:
    """An outbox that keeps what it is given."""

    slot_at = account_place = 0
    keeps = False

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.missed: list[bytes] = []
        self.kept: list[bytes] = []

    @property
    def outbox(self) -> "Collector":
        return self

    def retract(self, packet: bytes) -> None:
        """It is not for this client after all."""

    def deliver(self, packet: bytes, _publisher_uid: int) -> None:
        self.received.append(packet)

    def keeps_left_out(self, _publisher_uid: int) -> bool:
        return self.keeps

    def leave_out(self, packet: bytes, _publisher_uid: int, *, may_keep: bool = True) -> None:
        self.missed.append(packet)
        if may_keep and self.keeps:
            self.kept.append(packet)

    def take(self) -> list[bytes]:
        received, self.received = self.received, []
        return received


class Client:
    """A client of one router, with all that the worker does for it."""

    def __init__(self, router: Router, credentials: Credentials) -> None:
        self.router = router
        self.credentials = credentials
        self.process = Process()
        self.process.saved = (credentials.gid, credentials.uid)
        self.collector = Collector()
        self.outbox = cast(Outbox, self.collector)
        self.secret_recipient = SecretRecipient(
            credentials, self.outbox, cast(PeerProcess, self.process)
        )
        self.patterns: list[bytes] = []
        router.add_client(self.outbox, self.secret_recipient, 0)

    def check(self, pattern: bytes) -> None:
        check_pattern(pattern, SLASH, Limits())
        if begins_secret(pattern):
            self.secret_recipient.check_ids(pattern)
            self.secret_recipient.watch_process()
            self.secret_recipient.check_process(pattern)

    def sub(self, pattern: bytes) -> None:
        self.check(pattern)
        self.router.add(pattern, self.outbox)
        self.patterns.append(pattern)

    def unsub(self, pattern: bytes) -> None:
        self.patterns.remove(pattern)
        self.router.remove(pattern, self.outbox)


def new_router() -> Router:
    return Router(1, SLASH, Limits())


def publish(router: Router, key: bytes) -> None:
    packet = bytes(bytearray(key))  # each message is an object of its own
    for recipient in router.look_up(key).recipients:
        recipient.deliver(packet, ME.uid)


def secret(ids: tuple[bytes, ...], rest: bytes = b"x") -> bytes:
    return b"!/cred/%b/%b/%b/%b" % (*ids, rest)


NUMBERS = [0, 1, 2, 12]
_id = st.sampled_from([b"", b"", b"0", b"1", b"2", b"12", b"01", b"*", b"1*"])
_segment = st.sampled_from([b"", b"a", b"b", b"!", b"cred", b"*", b"a*", b"!*", b"1"])
_rest = st.lists(_segment, max_size=4).map(b"/".join)
_nested = st.builds(lambda *ids: b"!/cred/%b/%b/%b/%b" % ids, _id, _id, _id, _rest)
_part = st.builds(
    lambda gid, uid, pid, rest: b"!/cred/%b/%b/%b/%b" % (gid, uid, pid, rest),
    _id,
    _id,
    _id,
    st.one_of(_rest, _rest, _nested),
)
_anything = st.one_of(_part, _part, _part, _rest, st.sampled_from([b"", b"*/", b"!*/", b"!/"]))
_number = st.sampled_from(NUMBERS)
_credentials = st.builds(Credentials, gid=_number, uid=_number, pid=_number)


@settings(max_examples=3 * settings().max_examples)
@given(
    st.lists(st.tuples(_credentials, st.lists(_anything, max_size=6)), min_size=1, max_size=3),
    st.lists(_anything, max_size=15),
    st.sets(st.integers(0, 2)),
    st.booleans(),
)
def test_who_receives_what_is_as_the_specification_says(
    people: list[tuple[Credentials, list[bytes]]],
    keys: list[bytes],
    ending: set[int],
    take_back: bool,
) -> None:
    router = new_router()
    clients = [Client(router, credentials) for credentials, _ in people]
    for client, (_, patterns) in zip(clients, people, strict=True):
        for pattern in patterns:
            try:
                client.sub(pattern)
            except ClientFault:
                assert pattern.startswith(b"!") or b"/!" in pattern
    for phase in range(2):
        for key in keys:
            try:
                publish(router, key)
            except Refusal:
                continue
            for client in clients:
                expected = any(is_meant(client, pattern, key) for pattern in client.patterns)
                assert client.collector.take() == [key] * expected
        if phase == 0:
            for number in ending & set(range(len(clients))):
                clients[number].process.ended = True
            for client in clients:
                if take_back and client.patterns:
                    client.unsub(client.patterns[0])


def is_meant(client: Client, pattern: bytes, key: bytes) -> bool:
    """The specification's sentences about one pattern and one valid key."""
    if not key.startswith(b"!/"):
        return matches_as_any_pattern_does(pattern, key, SLASH)
    if not pattern.startswith(b"!/"):
        return False
    *wanted, wanted_rest = pattern.split(b"/", 5)[2:]
    *named, rest = key.split(b"/", 5)[2:]
    pid = None if client.process.ended else client.credentials.pid
    own = [client.credentials.gid, client.credentials.uid, pid]
    for mine, in_key, number in zip(wanted, named, own, strict=True):
        if in_key and (number is None or int(in_key) != number):
            return False
        if mine and mine != in_key:
            return False
    return matches_as_any_pattern_does(wanted_rest, rest, SLASH)


# -- who may subscribe -----------------------------------------------------------------------------


def test_one_that_cannot_be_watched_is_refused() -> None:
    client = Client(new_router(), ME)
    client.process.failure = OSError(24, "no descriptors")
    with pytest.raises(Refusal, match="too-many-secret"):
        client.check(secret((b"", b"", b"")))


OF_PROCESS = secret((b"", b"", b"30"))
OF_USER = secret((b"", b"20", b""))


# -- ids that nobody has ---------------------------------------------------------------------------


def test_what_the_kernel_could_not_translate_matches_nothing() -> None:
    gid, uid = untranslated_ids()
    client = Client(new_router(), Credentials(gid=gid, uid=uid, pid=0))
    client.sub(secret((b"", b"", b"")))
    for ids in product([b"", b"%d" % gid], [b"", b"%d" % uid], [b"", b"0"]):
        if any(ids):
            with pytest.raises(Misbehaviour, match="not-yours"):
                client.check(secret(ids))
        publish(client.router, secret(ids))
        assert bool(client.collector.take()) == (not any(ids)), ids


def test_an_outbox_without_a_secret_recipient_gets_no_secret_message() -> None:
    client = Client(new_router(), ME)
    client.sub(OF_USER)
    client.router.remove_client(client.outbox)
    publish(client.router, OF_USER)
    assert client.collector.take() == []


# -- the rest of the router ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "delivered"), [((10, 20), 4), (None, 4), ((10, 0), 1), ((0, 20), 1), ((0, 0), 1)]
)
def test_a_process_that_runs_another_user_s_program_is_not_the_client_s(
    saved: tuple[int, int] | None, delivered: int
) -> None:
    """Unless the key names the user and the group of the client."""
    client = Client(new_router(), ME)
    client.sub(secret((b"", b"", b"")))
    keys = [(b"10", b"20", b"30"), (b"", b"20", b"30"), (b"10", b"", b"30"), (b"", b"", b"30")]
    for _ in range(2):  # the routes are remembered the second time
        client.process.saved = (10, 20)
        for ids in keys:
            publish(client.router, secret(ids))
        assert len(client.collector.take()) == 4
        client.process.saved = saved
        for ids in keys:
            publish(client.router, secret(ids))
        assert len(client.collector.take()) == delivered


def test_a_message_to_many_connections_of_a_process_takes_one_look_at_its_ids() -> None:
    """It takes longer than a delivery."""
    router = new_router()
    clients = [Client(router, credentials) for credentials in (ME, ME, ME, OTHER, OTHER)]
    for client in clients:
        client.sub(secret((b"", b"", b"")))

    def take() -> tuple[list[int], int]:
        received = [len(client.collector.take()) for client in clients]
        looks = sum(client.process.looks for client in clients)
        for client in clients:
            client.process.looks = 0
        return received, looks

    publish(router, OF_PROCESS)
    publish(router, OF_PROCESS)
    assert take() == ([2, 2, 2, 0, 0], 2)
    publish(router, secret((b"", b"", b"31")))
    assert take() == ([0, 0, 0, 1, 1], 1)
    for client in clients:
        client.process.saved = (0, 0)
    publish(router, OF_PROCESS)
    assert take() == ([0, 0, 0, 0, 0], 1)


def test_a_process_that_gave_up_root_s_rights_is_still_the_client_s() -> None:
    client = Client(new_router(), Credentials(gid=0, uid=0, pid=30))
    client.sub(secret((b"", b"", b"")))
    publish(client.router, OF_PROCESS)
    assert client.collector.take() == [OF_PROCESS]


@pytest.mark.parametrize("key", [secret((b"10", b"20", b"30")), OF_PROCESS])
def test_a_message_that_is_left_out_is_never_kept_for_another_process(key: bytes) -> None:
    client = Client(new_router(), ME)
    client.sub(secret((b"", b"", b"")))
    (guard,) = client.router.look_up(key).recipients
    for client.collector.keeps, client.process.ended, missed in (
        *((False, False, 1), (True, False, 2)),
        *((False, True, 3), (True, True, 3)),
    ):
        guard.leave_out(key, 21)
        assert len(client.collector.missed) == missed


@pytest.mark.parametrize("keeps", [False, True])
def test_a_message_is_left_out_and_never_kept_while_there_is_no_time_to_look(keeps: bool) -> None:
    spent: list[SendTimeSpent] = []

    def look_in_time(_place: int, look: Callable[[], _Ids]) -> _Ids:
        for error in spent:
            raise error
        return look()

    client = Client(Router(1, SLASH, Limits(), look_in_time=look_in_time), ME)
    client.collector.keeps = keeps
    client.sub(secret((b"", b"", b"")))
    (guard,) = client.router.look_up(OF_PROCESS).recipients
    for spent[:] in ([], [SendTimeSpent()], []):
        guard.deliver(bytes(bytearray(OF_PROCESS)), 21)
        guard.leave_out(bytes(bytearray(OF_PROCESS)), 21)
    assert client.collector.received == [OF_PROCESS] * 2
    assert client.collector.missed == [OF_PROCESS] * 4
    assert client.collector.kept == [OF_PROCESS] * (2 if keeps else 0), "it has looked"


def test_only_keys_that_name_a_process_pay_for_its_guard() -> None:
    client = Client(new_router(), ME)
    client.sub(secret((b"", b"", b"")))
    client.sub(b"x")
    (guard,) = client.router.look_up(OF_PROCESS).recipients
    assert isinstance(guard, ProcessLifetimeGuard)
    for key in (OF_USER, b"x"):
        assert client.router.look_up(key).recipients == (client.outbox,)

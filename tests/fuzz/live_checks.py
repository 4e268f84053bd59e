"""What must have come of a round of packets against a running bus; see `live_campaign`."""

from collections import Counter

from sbus.protocol.keys import Dialect
from tests.fuzz.client_model import MEMBERS_REPLY, key_of
from tests.fuzz.live_client import LiveClient
from tests.fuzz.reference_matcher import ReferenceMatcher
from tests.history.names import Members, Names, listed_members, tells_of_name

_SECRET_MESSAGE = b"MSG !/cred/"


class LiveChecks:
    """Of one bus. What was compared is counted in `tally`."""

    def __init__(self, dialect: Dialect, members: Members, tally: Counter[str]) -> None:
        self._dialect = dialect
        self._members = members
        self._tally = tally
        self._history = Names()

    def check(self, clients: list[LiveClient], conductor: LiveClient, witness: LiveClient) -> None:
        """What came of one round."""
        order = _messages(conductor.received)
        assert order == _messages(witness.received), "two orders"
        self._check_order([*clients, conductor], order)
        self._check_names(clients, witness, order)
        self._check_received([*clients, conductor, witness], order)

    def _check_order(self, publishers: list[LiveClient], order: list[bytes]) -> None:
        """Everything that was published is in the one order, and nothing else."""
        published = [client.published_openly() for client in publishers]
        assert Counter(order) == Counter(it for messages in published for it in messages)
        for messages in published:
            assert _is_part_of(messages, order), "a publisher's messages are out of order"

    def _check_names(
        self, clients: list[LiveClient], witness: LiveClient, order: list[bytes]
    ) -> None:
        """The witness was told of everybody, a will comes right before its client's leave, and
        each list that the witness has got is that of its place."""
        self._history.begin_round()
        for packet in witness.received:
            if tells_of_name(packet):
                self._history.follow(packet)
                self._tally["joins and leaves"] += 1
            elif packet.startswith(MEMBERS_REPLY):
                assert set(listed_members(packet)) == self._history.now
        assert self._history.now == {*self._members.values()}
        for client in clients:
            farewell = _messages(client.farewell)
            if farewell:
                end = order.index(farewell[-1]) + 1
                assert order[end - len(farewell) : end] == farewell, "not at one place"

    def _check_received(self, everybody: list[LiveClient], order: list[bytes]) -> None:
        matcher = ReferenceMatcher(everybody, self._dialect)
        publisher_of = {packet: it for it in everybody for packet in it.published}
        secrets = [packet for packet in publisher_of if packet.startswith(_SECRET_MESSAGE)]
        must: list[list[bytes]] = [[] for _ in everybody]
        may: list[list[bytes]] = [[] for _ in everybody]
        for packet in (*order, *secrets):
            recipients = matcher.recipients(key_of(packet))
            publisher = publisher_of[packet]
            is_echoed = packet not in publisher.unechoed
            for number in recipients.must:
                if is_echoed or everybody[number] is not publisher:
                    must[number].append(packet)
            for number in recipients.may:
                if is_echoed or everybody[number] is not publisher:
                    may[number].append(packet)
        for client, sure, possible in zip(everybody, must, may, strict=True):
            if client.is_leaving:
                continue
            client.check_told()
            self._tally["lists of members"] += client.check_lists(
                client.received, self._history, client.may_see
            )
            self._compare(client, order, sure, possible)
        self._check_receipts(everybody)
        pairs = len(publisher_of) * len(everybody)
        self._tally["secret"] += len(secrets)
        self._tally["decisions"] += pairs
        self._tally["uncertain"] += sum(map(len, may))

    def _compare(
        self, client: LiveClient, order: list[bytes], sure: list[bytes], possible: list[bytes]
    ) -> None:
        """What a client received, and what it must and may receive. A client that was disconnected
        did not receive what came later."""
        received = _messages(client.received)
        secret = [it for it in client.received if it.startswith(_SECRET_MESSAGE)]
        self._tally["received"] += len(received) + len(secret)
        due = [it for it in sure if not it.startswith(_SECRET_MESSAGE)]
        if client.code or possible:
            assert _is_part_of(received, order), "out of order, or twice"
        else:
            assert received == due, "not just what was due, in its order"
        everything = Counter([*received, *secret])
        foreign = everything - Counter([*sure, *possible])
        assert not foreign, f"not for this client, or too often: {foreign}"
        missing = Counter(sure) - everything
        assert client.code or not missing, f"missing: {missing}"

    def _check_receipts(self, everybody: list[LiveClient]) -> None:
        """Who has left or was disconnected may have been sent a message and not have read it."""
        came = Counter(packet for client in everybody for packet in client.received)
        unknown = sum(client.is_leaving or bool(client.code) for client in everybody)
        for client in everybody:
            if client.is_leaving:
                continue
            for token, counts in client.check_receipts(client.received).items():
                self._tally["receipts"] += len(counts)
                received = sum(came[message] for message in client.receipts[token])
                if not client.code:
                    assert received <= sum(counts) <= received + unknown * len(counts), token


def _messages(received: list[bytes]) -> list[bytes]:
    """Without control messages and secret messages."""
    return [it for it in received if it.startswith(b"MSG ") and not it.startswith(_SECRET_MESSAGE)]


def _is_part_of(some: list[bytes], order: list[bytes]) -> bool:
    """Whether all of these are in `order`, in this sequence."""
    rest = iter(order)
    return all(packet in rest for packet in some)

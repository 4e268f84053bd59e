"""The record of a client: what one version writes, the others of its major version read."""

import msgspec
import pytest

from sbus.broker.ipc.client_record import (
    PATTERNS_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    BacklogRecord,
    ClientRecord,
    ClientSnapshot,
    ClientState,
    Departure,
    ReplyRecord,
    UnknownVersion,
    check_version,
    decode_snapshot,
    decode_state,
    encode_snapshot,
    encode_state,
)
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft

STATE = ClientState(
    version=(1, 0),
    echo=False,
    wants_notices=True,
    wants_sender=True,
    flood_control=FloodControl(soft=Soft.BLOCK, hard=Hard.ERROR, order=BacklogOrder.STACK),
    messages_in=1,
    bytes_in=2,
    refused=3,
    accepted=4,
    delivered_bytes=5,
    dropped={"soft": 6},
)
STATE_1_0 = bytes.fromhex(
    "8aa776657273696f6e920100a46563686fc2ad77616e74735f6e6f7469636573c3ad666c6f6f645f636f6e74726f6c83"
    "a4736f6674a5626c6f636ba468617264a56572726f72a56f72646572a5737461636bab6d657373616765735f696e01a8"
    "62797465735f696e02a77265667573656403a8616363657074656404af64656c6976657265645f627974657305a76472"
    "6f7070656481a4736f667406"
)
"""As version 1.0 wrote it."""

SNAPSHOT = ClientSnapshot(
    client=7,
    patterns={b"a/*": 2, b"b": 1},
    has_backpressure=True,
    state=STATE,
    pending=[b"MSG k\0v", b"SUB c"],
    received_us=9,
    unanswered=b"CMSG !/cred/whoami",
    backlog=BacklogRecord(missing=10, items=[b"MSG k\0w", 11, ReplyRecord(b"CMSG r\0")]),
    is_stalled=True,
    has_large_buffer=True,
    awaits_self_service=True,
    departure=Departure(reason="kicked", notice=b"CMSG !/error\0kicked"),
)
FROM_1_0 = msgspec.structs.replace(STATE, version=(1, 0), wants_sender=False)
SNAPSHOT_1_0 = bytes.fromhex(
    "8da6636c69656e7407a87265766973696f6e08a87061747465726e7382c403612f2a02c4016201b06861735f6261636b"
    "7072657373757265c3a573746174658aa776657273696f6e920100a46563686fc2ad77616e74735f6e6f7469636573c3"
    "ad666c6f6f645f636f6e74726f6c83a4736f6674a5626c6f636ba468617264a56572726f72a56f72646572a573746163"
    "6bab6d657373616765735f696e01a862797465735f696e02a77265667573656403a8616363657074656404af64656c69"
    "76657265645f627974657305a764726f7070656481a4736f667406a770656e64696e6792c4074d5347206b0076c40553"
    "55422063ab72656365697665645f757309aa756e616e737765726564c412434d534720212f637265642f77686f616d69"
    "a76261636b6c6f6782a76d697373696e670aa56974656d7393c4074d5347206b00770b91c407434d5347207200aa6973"
    "5f7374616c6c6564c3b06861735f6c617267655f627566666572c3b36177616974735f73656c665f73657276696365c3"
    "a964657061727475726582a6726561736f6ea66b69636b6564a66e6f74696365c413434d534720212f6572726f72006b"
    "69636b6564"
)
"""As version 1.0 wrote it."""


def _builtins(record: ClientState | ClientSnapshot) -> dict[str, object]:
    fields = msgspec.to_builtins(record, builtin_types=(bytes,))
    assert isinstance(fields, dict)
    return fields


def test_a_snapshot_is_read_as_it_was_written() -> None:
    assert decode_snapshot(encode_snapshot(SNAPSHOT)) == SNAPSHOT


def test_the_first_version_of_a_snapshot_is_read_for_ever() -> None:
    assert decode_snapshot(SNAPSHOT_1_0) == msgspec.structs.replace(SNAPSHOT, state=FROM_1_0)


def test_a_snapshot_of_a_later_minor_version_is_read() -> None:
    later = {**_builtins(SNAPSHOT), "invented_later": [1, {}]}
    assert decode_snapshot(msgspec.msgpack.encode(later)) == SNAPSHOT
    assert decode_snapshot(msgspec.msgpack.encode({"client": 7})) == ClientSnapshot(client=7)


def test_a_state_is_read_as_it_was_written() -> None:
    assert decode_state(encode_state(STATE)) == STATE


def test_the_first_version_is_read_for_ever() -> None:
    assert decode_state(STATE_1_0) == FROM_1_0


def test_a_later_minor_version_is_read() -> None:
    later = {**_builtins(STATE), "version": (1, 9), "invented_later": [1, {}]}
    assert decode_state(msgspec.msgpack.encode(later)).messages_in == STATE.messages_in
    earlier = {"version": (1, 0)}
    assert decode_state(msgspec.msgpack.encode(earlier)) == ClientState(version=(1, 0))


@pytest.mark.parametrize("version", [(0, 1), (2, 0)])
def test_another_major_version_is_refused(version: tuple[int, int]) -> None:
    other = {**_builtins(STATE), "version": version}
    with pytest.raises(UnknownVersion, match=rf"version {version[0]}\.{version[1]}"):
        decode_state(msgspec.msgpack.encode(other))
    with pytest.raises(UnknownVersion):
        check_version(version)


def test_the_largest_record_fits_a_packet_of_a_link() -> None:
    size = PATTERNS_BYTES_MAX // SUBSCRIPTIONS_MAX
    patterns = {b"%0*d" % (size, number): 1 for number in range(SUBSCRIPTIONS_MAX)}
    record = ClientRecord(revision=2**62, patterns=patterns, has_backpressure=True)
    assert len(msgspec.msgpack.encode(record)) < 90 * 1024

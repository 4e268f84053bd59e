"""The record of a client: what one version writes, the others of its major version read."""

import msgspec
import pytest

from sbus.broker.ipc.client_record import (
    PATTERNS_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    ClientRecord,
    ClientState,
    UnknownVersion,
    check_version,
    decode_state,
    encode_state,
)
from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft

STATE = ClientState(
    echo=False,
    wants_notices=True,
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


def test_a_state_is_read_as_it_was_written() -> None:
    assert decode_state(encode_state(STATE)) == STATE


def test_the_first_version_is_read_for_ever() -> None:
    assert decode_state(STATE_1_0) == STATE


def test_a_later_minor_version_is_read() -> None:
    later = {**msgspec.to_builtins(STATE), "version": (1, 9), "invented_later": [1, {}]}
    assert decode_state(msgspec.msgpack.encode(later)).messages_in == STATE.messages_in
    earlier = {"version": (1, 0)}
    assert decode_state(msgspec.msgpack.encode(earlier)) == ClientState()


@pytest.mark.parametrize("version", [(0, 1), (2, 0)])
def test_another_major_version_is_refused(version: tuple[int, int]) -> None:
    other = {**msgspec.to_builtins(STATE), "version": version}
    with pytest.raises(UnknownVersion, match=rf"version {version[0]}\.{version[1]}"):
        decode_state(msgspec.msgpack.encode(other))
    with pytest.raises(UnknownVersion):
        check_version(version)


def test_the_largest_record_fits_a_packet_of_a_link() -> None:
    size = PATTERNS_BYTES_MAX // SUBSCRIPTIONS_MAX
    patterns = {b"%0*d" % (size, number): 1 for number in range(SUBSCRIPTIONS_MAX)}
    record = ClientRecord(revision=2**62, patterns=patterns, has_backpressure=True)
    assert len(msgspec.msgpack.encode(record)) < 90 * 1024

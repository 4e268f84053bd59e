"""Client slots: what is kept of a client, and no slot is taken for another client's."""

from contextlib import suppress

import pytest

from sbus.protocol.controls import FloodControl
from sbus.shared.client_slots import ClientSettings, Connection
from tests.unit.shared.memories import spare_slot, spare_slots

SETTINGS = ClientSettings(echo=True, wants_notices=False, flood_control=FloodControl())


def test_connections_are_found_by_what_the_front_has_written() -> None:
    slots = spare_slots(3)
    assert list(slots.connections()) == []
    for slot, number in enumerate((7, 8, 9)):
        slots[slot].connect(number, 70 + number, 1.5)
    slots[1].disconnect()
    slots[2].save(9, SETTINGS)
    slots[2].keep_request(b"x" * 10_000, 1)
    assert list(slots.connections()) == [
        Connection(slot=0, number=7, cookie=77, connected_at=1.5),
        Connection(slot=1, number=8, cookie=0, connected_at=1.5),
        Connection(slot=2, number=9, cookie=79, connected_at=1.5),
    ]


@pytest.mark.parametrize("request_bytes", [1, 176, 177, 6_000, 6_208, 10_000])
def test_a_request_is_kept_as_far_as_there_is_room(request_bytes: int) -> None:
    slots = spare_slots(3)
    packets = [bytes([number]) * request_bytes for number in range(3)]
    for number, packet in enumerate(packets):
        slots[number].keep_request(packet, 4)
    for number, packet in enumerate(packets):
        assert slots[number].request == packet[:6_208]
        slots[number].pending = 1
        assert slots[number].request == packet[:6_208]
        assert slots[number].pending == 1
        slots[number].forget_pending()
        assert slots[number].request == b""


def test_a_request_has_its_place_when_its_own_mark_says_so() -> None:
    slot = spare_slot()
    slot.keep_request(b"SUB a", 1)
    earlier = slot.begin_step()
    assert slot.has_place(earlier)
    assert not slot.has_place(0)
    slot.forget_pending()
    slot.keep_request(b"SUB b", 1)
    assert not slot.has_place(earlier), "it has not begun"
    assert slot.begin_step() != earlier
    assert not slot.has_place(earlier)


def test_a_reply_is_in_doubt_while_it_is_sent() -> None:
    slot = spare_slot()
    slot.keep_request(b"CMSG !/cred/whoami", 1)
    with suppress(BlockingIOError), slot.replying():
        assert slot.is_reply_in_doubt
        raise BlockingIOError
    assert not slot.is_reply_in_doubt
    assert slot.request, "it was not sent"
    with slot.replying():
        assert slot.is_reply_in_doubt
    assert not slot.request
    assert not slot.pending


def test_a_slot_has_nothing_of_the_client_that_had_it_before() -> None:
    slot = spare_slot()
    slot.save(7, SETTINGS)
    slot.keep_request(b"SUB a", 3)
    slot.waiting = 5
    slot.save(7, SETTINGS)
    assert (slot.request, slot.pending, slot.waiting) == (b"SUB a", 3, 5)
    slot.save(8, SETTINGS)
    assert (slot.request, slot.pending, slot.waiting) == (b"", 0, 0)

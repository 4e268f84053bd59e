"""Client slots: what a client has chosen is kept, and no slot is taken for another client's."""

import itertools

import pytest

from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft
from sbus.shared.client_slots import ClientSettings
from tests.unit.shared.memories import spare_slot, spare_slots

ALL_SETTINGS = [
    ClientSettings(echo, wants_notices, FloodControl(soft=soft, hard=hard, order=order))
    for echo, wants_notices, soft, hard, order in itertools.product(
        (False, True), (False, True), Soft, Hard, BacklogOrder
    )
]
SETTINGS = ALL_SETTINGS[0]


@pytest.mark.parametrize("settings", ALL_SETTINGS)
def test_settings_are_kept(settings: ClientSettings) -> None:
    slot = spare_slot()
    slot.save(7, settings)
    assert slot.settings() == settings
    assert not slot.is_closed


def test_a_slot_is_the_last_clients_that_was_served() -> None:
    slot = spare_slot()
    assert not slot.is_of(7)
    slot.save(7, SETTINGS)
    assert slot.is_of(7)
    assert not slot.is_of(8)


def test_a_closed_client_stays_closed_until_another_has_its_slot() -> None:
    slot = spare_slot()
    slot.save(7, SETTINGS)
    slot.close()
    assert slot.is_closed
    assert slot.is_of(7)
    slot.save(8, SETTINGS)
    assert not slot.is_closed


def test_slots_do_not_overlap() -> None:
    slots = spare_slots(3)
    for number, settings in zip(range(3), ALL_SETTINGS[1::7], strict=False):
        slots[number].save(number, settings)
    for number, settings in zip(range(3), ALL_SETTINGS[1::7], strict=False):
        assert slots[number].is_of(number)
        assert slots[number].settings() == settings

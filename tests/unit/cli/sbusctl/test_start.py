"""The packets of the short way are those of the protocol."""

from sbus.cli.sbusctl import start
from sbus.protocol import controls
from sbus.protocol.packets import encode_control


def test_its_packets_are_those_of_the_protocol() -> None:
    assert encode_control(controls.NOTICES_ON) == start.NOTICES_ON
    assert encode_control(controls.WHOAMI) == start.WHOAMI
    assert encode_control(controls.ERROR, b"") == start.ERROR

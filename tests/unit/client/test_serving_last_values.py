"""A service of last values with a bus of bare packets."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from sbus.client import blocking
from sbus.errors import Disconnected
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import ANSWER, ORDER, WHOAMI, FakeBus

TIMEOUT_S = 60.0
REPLY_KEY = b"!/cred/5/6/7/reply/x"


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_joiner_whose_snapshot_may_be_lost_is_asked_again(
    fake: FakeBus, bus: blocking.Connection[Message], is_lost: bool
) -> None:
    with ThreadPoolExecutor(1) as executor:
        serving = executor.submit(bus.serve_last_values, "a/")
        try:
            for packet in (b"CMSG sender/on", ORDER, b"SUB a/", b"SUB last-values/a/"):
                assert fake.receive() == packet
            fake.answer(WHOAMI, ANSWER)
            fake.send(b"MSG last-values/a/\0%b\0t\0" % REPLY_KEY)
            _, token, key, part = fake.receive().split(b"\0", 3)
            assert (key, part[:6]) == (REPLY_KEY, b"t\0end ")
            code = b"packets-lost" if is_lost else b"access-denied"
            fake.send(b"CMSG !/receipt\0%b\0refused %b text" % (token, code))
            if is_lost:
                assert fake.receive() == b"MSG %b\0t!\0ask again" % REPLY_KEY
            fake.send(b"MSG last-values/a/\0%b\0next\0" % REPLY_KEY)
            assert fake.receive().split(b"\0", 3)[3][:9] == b"next\0end "
        finally:
            bus.close()
        with pytest.raises(Disconnected):
            serving.result(TIMEOUT_S)

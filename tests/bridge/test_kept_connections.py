"""With a service manager that keeps its connections, a bridge may be killed at any instant: of a
durable channel, everything crosses once."""

import random
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.bridge.exporting_pair import exporting_pair
from tests.support.accounts import Account
from tests.support.bridges import BridgeOfBus, needs_nats, service_of_bridge

pytestmark = needs_nats

ROUND_MESSAGES = 1_500


def test_everything_crosses_once(tmp_path: Path) -> None:
    with exporting_pair(tmp_path, begins=False) as scene, ExitStack() as stack:
        bridges = {
            name: stack.enter_context(
                service_of_bridge(bus.address, scene.place(name), scene.config(name))
            )
            for name, bus in scene.buses.items()
        }
        BridgeOfBus(address=scene.buses["a"].address).wait_reading()
        BridgeOfBus(address=scene.buses["b"].address).wait_importing()
        account = Account(scene.buses["b"].address)
        dice, sent = random.Random(1), 0
        for killed in "ab":
            numbers = (sent + 1, sent + ROUND_MESSAGES)
            publisher = threading.Thread(target=scene.publish, args=numbers)
            publisher.start()
            account.read_until({"a": sent + dice.randrange(1, ROUND_MESSAGES)}, at_least=True)
            bridges[killed].kill()
            publisher.join()
            bridges[killed].start()
            sent += ROUND_MESSAGES
        account.read_until({"a": sent})
        assert not any(account.admitted.values())
        account.read_nothing()
        account.bus.close()

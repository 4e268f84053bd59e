"""With a service manager that keeps its connections, a bridge may be killed at any instant: of a
durable channel, everything crosses once."""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sbus
from tests.support.accounts import Account
from tests.support.bridges import BridgeOfBus, nats_server, needs_nats, service_of_bridge
from tests.support.bus import Bus, running_bus
from tests.support.kept_service import KeptService

pytestmark = needs_nats

CONFIG = """
[bridge]
origin = "{name}"
state = "."
[channels.all]
patterns = ["all/"]
[channels.all.durable]
[links.office]
servers = ["{url}"]
{way} = ["all"]
"""
ROUND_MESSAGES = 1_500


class Scene:
    """Bus `a` exports to bus `b`, each with a bridge that is a service."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        server = stack.enter_context(nats_server(directory, "-js", "-sd", str(directory / "js")))
        self.buses: dict[str, Bus] = {}
        self.bridges: dict[str, KeptService] = {}
        for name, way in (("b", "import"), ("a", "export")):
            place = directory / name
            place.mkdir()
            self.buses[name] = stack.enter_context(running_bus(place))
            config = CONFIG.format(name=name, way=way, url=server.url)
            bridge = service_of_bridge(self.buses[name].address, place, config)
            self.bridges[name] = stack.enter_context(bridge)
        BridgeOfBus(address=self.buses["a"].address).wait_reading()
        BridgeOfBus(address=self.buses["b"].address).wait_importing()

    def publish(self, first: int, last: int) -> None:
        with sbus.blocking.connect(self.buses["a"].address) as bus:
            for number in range(first, last + 1):
                bus.publish("all/a", str(number))
            bus.sync()


@contextmanager
def running_scene(directory: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(directory, stack)


def test_everything_crosses_once(tmp_path: Path) -> None:
    with running_scene(tmp_path) as scene:
        account = Account(scene.buses["b"].address)
        dice, sent = random.Random(1), 0
        for killed in "ab":
            numbers = (sent + 1, sent + ROUND_MESSAGES)
            publisher = threading.Thread(target=scene.publish, args=numbers)
            publisher.start()
            account.read_until({"a": sent + dice.randrange(1, ROUND_MESSAGES)}, at_least=True)
            scene.bridges[killed].kill()
            publisher.join()
            scene.bridges[killed].start()
            sent += ROUND_MESSAGES
        account.read_until({"a": sent})
        assert not any(account.admitted.values())
        account.read_nothing()
        account.bus.close()

"""The bridge as a service: its configuration, the service manager, and its end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bridges import running_bridge
from tests.support.bus import Bus, running_bus
from tests.support.service_manager import service_manager

CONFIG = """
[channels.lamps]
patterns = ["lamps/"]
[links.office]
servers = ["nats://127.0.0.1:1"]
export = ["lamps"]
"""


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with running_bus(tmp_path_factory.mktemp("bus")) as bus:
        yield bus


def test_says_what_a_configuration_has(bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(CONFIG)
    done = bus.sbusctl("bridge", "--config", str(file), "--check-config")
    assert done.stdout.decode() == (f"{file}: links: 1, channels: 1, exported: 1, imported: 0\n")


def test_says_what_is_wrong_with_it(bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(CONFIG.replace("export", "exprot"))
    for more in ([], ["--check-config"]):
        done = bus.sbusctl("bridge", "--config", str(file), *more)
        assert done.returncode == 1
        assert done.stderr.decode() == (
            f"sbusctl: {file}: links.office.exprot: there is no such field; did you mean export?\n"
        )


def test_tells_the_service_manager_without_waiting_for_nats(bus: Bus, tmp_path: Path) -> None:
    with (
        service_manager(tmp_path) as manager,
        running_bridge(
            bus, tmp_path, CONFIG, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="30000000"
        ) as bridge,
    ):
        ready = manager.next_but_watchdog()
        assert ready["READY"] == "1"
        assert ready["STATUS"].startswith("links: 1, channels: 1")
        assert manager.is_fed_within(10)
        bridge.stop()
        assert manager.next_but_watchdog()["STOPPING"] == "1"


def test_without_a_bus_it_fails_with_one_line(bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(CONFIG + f'[bridge]\naddress = "{tmp_path}/none"\n')
    done = bus.sbusctl("bridge", "--config", str(file))
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"sbusctl: cannot connect to {tmp_path}/none: ")
    assert done.stderr.count(b"\n") == 1

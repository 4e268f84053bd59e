"""A client that wants no message that has waited too long (docs/protocol.md, "A slow client")."""

import time
from pathlib import Path

import pytest

from tests.support.admin import administer
from tests.support.bus import running_bus
from tests.support.processes import clients_on_each
from tests.support.threads import wait_until

MESSAGES = 2_000


@pytest.mark.parametrize("order", ["queue", "stack", "random", "latest"])
def test_a_slow_client_gets_nothing_that_is_too_old(tmp_path: Path, order: str) -> None:
    """What is in its socket cannot become too old; all the rest does, and is told of as lost."""
    with (
        running_bus(tmp_path, workers=2) as bus,
        clients_on_each(bus, 2, 2) as ((slow, same), (other, _)),
    ):
        for choice in ("!/notices/on", f"order/{order}", "age/1"):
            slow.control(choice.encode())
        slow.sub(b"k/")
        slow.whoami()
        for number in range(MESSAGES):
            (same, other)[number % 2].pub(b"k/%d" % number, bytes(200))
        same.whoami()
        other.whoami()
        came_at = time.monotonic()
        wait_until(lambda: time.monotonic() > came_at + 0.005, "all of it is too old")
        packets = slow.sync()
        received = [packet for packet in packets if packet.startswith(b"MSG")]
        lost = [int(packet[12:]) for packet in packets if packet.startswith(b"CMSG !/lost\0")]
        assert sum(lost) == MESSAGES - len(received) > MESSAGES / 2
        assert packets[: len(received)] == received, "something was sent that had waited"
        with administer(bus) as admin:
            (activity,) = [
                client["activity"]
                for client in admin.ask("clients")["clients"]
                if client["activity"]["age_ms_max"]
            ]
            traffic = admin.ask("stats")["traffic"]
        assert (activity["age_ms_max"], activity["backlog"]) == (1, 0)
        assert activity["discarded"] == traffic["discarded"]["age"] == sum(lost)
        same.pub(b"k/fresh", b"")
        assert slow.receive() == b"MSG k/fresh\0"

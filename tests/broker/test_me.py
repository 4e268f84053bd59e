"""`!/me`: every client may query the bus about its own user, over the bus itself."""

import json
import os
from pathlib import Path
from typing import Any

from tests.support.admin import administer
from tests.support.bus import Bus, running_bus
from tests.support.processes import several_clients
from tests.support.raw_client import RawClient

REPLY = b"CMSG !/me\0"


def ask(client: RawClient) -> dict[str, Any]:
    client.control(b"!/me")
    return understood(client.receive())


def understood(packet: bytes) -> dict[str, Any]:
    assert packet.startswith(REPLY)
    result = json.loads(packet.removeprefix(REPLY))
    assert isinstance(result, dict)
    return result


def test_the_reply_lists_all_clients_of_the_user(bus: Bus) -> None:
    with several_clients(bus, 3) as (one, two, three):
        one.sub(b"a")
        one.sub(b"a")
        two.sub(b"b/\xff")
        one.sync()
        two.sync()
        for _ in range(5):
            three.pub(b"a", b"")
        three.sync()
        one.sync()
        found = ask(three)
        assert [client["activity"]["messages_in"] for client in found["clients"]] == [0, 0, 5]
        assert [client["activity"]["delivered"] for client in found["clients"]] == [5, 0, 0]
        patterns = [(entry["pattern"], entry["count"]) for entry in found["subscriptions"]]
        assert sorted(patterns) == [("a", 2), ("b/\\xff", 1)]
        user = found["user"]
        assert (user["uid"], user["connections"], user["subscriptions"]) == (os.getuid(), 3, 3)
        assert user["limits"]["connections_max"] == 1_024


def test_a_client_that_asks_and_leaves_does_no_harm(bus: Bus) -> None:
    for _ in range(20):
        with bus.connect() as client:
            client.control(b"!/me")
    with bus.connect() as client, administer(bus) as admin:
        assert ask(client)["user"]["uid"] == os.getuid()
        assert admin.ask("stats")["clients"] >= 1


def test_a_reply_fits_into_a_packet_of_the_bus(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, "--limit", "packet_bytes_max=3000") as bus,
        several_clients(bus, 30) as clients,
    ):
        found = ask(clients[0])
        assert found["user"]["connections"] == 30
        assert 0 < len(found["clients"]) < 30

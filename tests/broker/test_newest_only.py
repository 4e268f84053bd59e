"""A client that wants only the newest message of each key (docs/protocol.md, `order/latest`)."""

from pathlib import Path

import sbus
from tests.support.admin import administer
from tests.support.bus import running_bus
from tests.support.processes import clients_on_each

KEYS = 20
ROUNDS = 400
TIMEOUT_S = 20.0


def payload(number: int) -> bytes:
    return b"%06d" % number + bytes(200)


def test_a_slow_client_gets_the_newest_message_of_each_key_and_no_loss(tmp_path: Path) -> None:
    """With a publisher on its own worker and one on another."""
    with (
        running_bus(tmp_path, workers=2) as bus,
        clients_on_each(bus, 2, 2) as ((slow, same), (other, _)),
    ):
        slow.control(b"!/notices/on")
        slow.control(b"order/latest")
        slow.sub(b"state/")
        slow.whoami()
        for number in range(ROUNDS):
            for key in range(KEYS):
                (same, other)[key % 2].pub(b"state/%d" % key, payload(number))
        same.whoami()
        other.whoami()
        packets = slow.sync()
        assert all(packet.startswith(b"MSG state/") for packet in packets), "something was lost"
        newest = dict(packet.split(b"\0", 1) for packet in packets)
        assert newest == {b"MSG state/%d" % key: payload(ROUNDS - 1) for key in range(KEYS)}
        with administer(bus) as admin:
            [activity] = [
                client["activity"]
                for client in admin.ask("clients")["clients"]
                if client["activity"]["order"] == "latest"
            ]
            traffic = admin.ask("stats")["traffic"]
        assert activity["accepted"] == traffic["accepted"] == KEYS * ROUNDS
        assert activity["replaced"] == traffic["replaced"] == KEYS * ROUNDS - len(packets)
        assert activity["replaced"] > KEYS * ROUNDS / 2
        assert (activity["discarded"], activity["backlog"]) == (0, 0)


def test_jobs_are_not_replaced_on_a_bus_whose_clients_begin_with_this_order(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, "--order", "latest") as bus,
        sbus.blocking.connect(bus.address, sender=True) as member,
        member.worker_group("group", "job", timeout_seconds=TIMEOUT_S) as jobs,
        sbus.blocking.connect(bus.address) as speaker,
    ):
        for number in range(ROUNDS):
            speaker.publish("job", payload(number))
        speaker.sync(timeout_seconds=TIMEOUT_S)
        for number in range(ROUNDS):
            job = jobs.receive(timeout_seconds=TIMEOUT_S)
            assert job.payload == payload(number)
            job.done()

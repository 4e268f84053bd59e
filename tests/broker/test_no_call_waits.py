"""No call of a worker or the front waits for a client, whatever the flags of the client's socket:
every packet is received and sent with MSG_DONTWAIT, and copies of sockets leave O_NONBLOCK alone.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from sbus.bench.proc import process_tree
from tests.support.admin import Admin, administer
from tests.support.attacks import attacked_bus
from tests.support.bus import Bus
from tests.support.client_sockets import check_sockets, sockets
from tests.support.moves import move
from tests.support.needs import needs_tool
from tests.support.pattern_bombs import connect_as
from tests.support.processes import process_name, serving_pids, stopped
from tests.support.streams import events_of, messages_of
from tests.support.threads import Task, wait_until
from tests.support.tracing import traced
from tests.support.upgrades import changing_bus, serving_pid, upgrade
from tests.support.users import UNPRIVILEGED, directory_for_everybody, needs_root

MESSAGES = 2_000
ATTACK_SECONDS = 0.5
PAYLOAD = bytes(1_000)
"""All together more than the largest socket holds."""


def worker_of(admin: Admin, client: int) -> int:
    (found,) = [one for one in admin.ask("clients")["clients"] if one["client"] == client]
    worker = found["worker"]
    assert isinstance(worker, int)
    return worker


def pids_by_name(bus: Bus) -> dict[str, int]:
    return {process_name(pid): pid for pid in process_tree(serving_pid(bus))}


def test_a_client_that_is_moved_after_an_upgrade_makes_its_worker_wait_for_nothing() -> None:
    """The front has a copy of the client's socket made while the other worker prepares, which takes
    as long as that is stopped. Meanwhile the client's socket becomes full."""
    with (
        directory_for_everybody() as directory,
        changing_bus(directory, "-o") as changing,
        connect_as(changing.bus, UNPRIVILEGED) as unread,
        changing.bus.connect() as other,
        administer(changing.bus) as before,
    ):
        unread.sub(b"unread")
        unread.sync()
        other.sync()
        first, second = (one["client"] for one in before.ask("clients")["clients"])
        upgrade(changing.bus)
        with administer(changing.bus) as admin, administer(changing.bus) as moving:
            here = worker_of(admin, first)
            assert move(admin, second, here) == ""
            processes = pids_by_name(changing.bus)
            front = serving_pid(changing.bus)
            with stopped(processes[f"sbusd-worker-{1 - here}"]):
                moved = Task(lambda: move(moving, first, 1 - here))
                wait_until(
                    lambda: max(Counter(inode for _, inode in sockets(front)).values()) == 2,
                    "the front has copied the client's socket",
                )
                check_sockets(processes.values())
                for _ in range(MESSAGES):
                    other.pub(b"unread", PAYLOAD)
                assert other.sync() == []
            moved.join()
            assert pids_by_name(changing.bus) == processes, "a process was replaced"


CALL = re.compile(
    r"(recv|send|read|write)\w*\(\d+<UNIX[-A-Z]*:\[\d+->\d+,\".*(?<!<detached \.\.\.>)$",
    re.MULTILINE,
)
"""One for a connection to an address of the bus: no other has an address. A call in which the trace
ends is not shown with its flags."""


@needs_root
@needs_tool("strace", "strace")
@pytest.mark.parametrize("attack", ["order-random", "descriptors"])
def test_every_packet_is_received_and_sent_without_waiting(attack: str, tmp_path: Path) -> None:
    """Some clients do not read, some come and go, and some are disconnected. An administrator and
    two watchers are served as well."""
    kinds = "-etrace=%network,read,readv,write,writev"
    options = ("-yy", "-s0", "-ff", f"-o{tmp_path}/calls", kinds)
    with (
        attacked_bus(attack) as (bus, scene),
        events_of(bus),
        messages_of(bus, b"a"),
        administer(bus) as admin,
        traced(serving_pids(bus), *options),
    ):
        scene.attack(ATTACK_SECONDS)
        admin.ask("stats")
    traces = "".join(path.read_text() for path in tmp_path.iterdir())
    calls = {found[0]: found[1] for found in CALL.finditer(traces)}
    assert set(calls.values()) == {"recv", "send"}
    assert [call for call in calls if "MSG_DONTWAIT" not in call] == []

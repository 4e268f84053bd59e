"""A bus, a victim and the attackers of `sbus.bench.attacks`, each of a user of its own."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sbus.bench.attacks.programs import ATTACKS
from sbus.bench.attacks.scene import Scene, scene
from tests.support.bus import Bus, running_bus
from tests.support.users import become, directory_for_everybody

Storm = Callable[[str], None]
"""What an attacker does again and again to a bus at this address."""


@contextmanager
def attacked_bus(attack: str, *options: str) -> Iterator[tuple[Bus, Scene]]:
    """All are ready, and nobody attacks yet."""
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o", *ATTACKS[attack].options, *options) as bus,
        scene(attack, bus.address, directory, 2) as stage,
    ):
        yield bus, stage


@contextmanager
def storming(
    uids: Iterable[int], ahead_seconds: float, address: str, storm: Storm
) -> Iterator[None]:
    """During the block, and for some time before, a process of each user storms."""
    pids = []
    for uid in uids:
        pid = os.fork()
        if pid == 0:
            try:
                become(uid, uid)()
                while True:
                    try:
                        storm(address)
                    except OSError:
                        continue  # refused or disconnected in the middle of it
            finally:
                os._exit(1)
        pids.append(pid)
    try:
        time.sleep(ahead_seconds)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

"""A bus, a victim and the attackers of `sbus.bench.attacks`, each of a user of its own."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sbus.bench.attacks.programs import ATTACKS
from sbus.bench.attacks.scene import Scene, scene
from tests.support.bus import Bus, running_bus
from tests.support.users import become, directory_for_everybody

Storm = Callable[[str], None]
"""What an attacker does again and again to a bus at this address."""


@contextmanager
def attacked_bus(attack: str, directory: Path | None = None) -> Iterator[tuple[Bus, Scene]]:
    """All are ready, and nobody attacks yet. For each directory, the programs are compiled once."""
    with ExitStack() as stack:
        place = directory or stack.enter_context(directory_for_everybody())
        bus = stack.enter_context(running_bus(place, "-o", *ATTACKS[attack].options))
        yield bus, stack.enter_context(scene(attack, bus.address, place, 2))


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

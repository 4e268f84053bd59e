"""A bus, a victim and the attackers of `sbus.bench.attacks`, each of a user of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from sbus.bench.attacks.programs import ATTACKS
from sbus.bench.attacks.scene import Scene, scene
from tests.support.bus import Bus, running_bus
from tests.support.users import directory_for_everybody


@contextmanager
def attacked_bus(attack: str, *options: str, workers: int = 2) -> Iterator[tuple[Bus, Scene]]:
    """All are ready, and nobody attacks yet."""
    with (
        directory_for_everybody() as directory,
        running_bus(directory, "-o", *ATTACKS[attack].options, *options, workers=workers) as bus,
        scene(attack, bus.address, directory, max(2, workers)) as stage,
    ):
        yield bus, stage

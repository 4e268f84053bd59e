"""A bus that ends while a client that chose `block` holds publishers back.

Who is held, and until when: `tests/protocol/11-holding-publishers-back.t`. That publishers are
released in any case: `test_block_budget`.
"""

import signal
from pathlib import Path

from tests.support.block_scene import OPTIONS, SOFT, scene_on
from tests.support.bus import running_bus


def test_a_bus_ends_though_publishers_are_held(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, *OPTIONS, workers=2) as bus,
        scene_on(bus, 2, 1) as scene,
    ):
        scene.subscribe(scene.slow, *SOFT)
        scene.hold()
        scene.hold(scene.other_publisher)
        bus.process.send_signal(signal.SIGTERM)
        assert bus.process.wait(60) == 0

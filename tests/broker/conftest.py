"""For the tests of several files: the scenes of a slow client that blocks (`block_scene`), and a
bus that refuses some keys."""

from collections.abc import Iterator

import pytest

from tests.support.block_scene import Scenes
from tests.support.bus import Bus, running_bus

RULES = """
[[rules]]
deny = ["publish", "subscribe"]
keys = ["denied/"]
"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenes]:
    made = Scenes(tmp_path_factory.mktemp("block"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def strict_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    directory = tmp_path_factory.mktemp("strict")
    (directory / "sbus.toml").write_text(RULES)
    with running_bus(directory, "--config", str(directory / "sbus.toml")) as bus:
        yield bus

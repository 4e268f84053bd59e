"""What every test shares: how hypothesis runs, and a bus for those that just need one."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.bus import Bus, running_bus

# How long one example takes says more about the machine than about the code.
hypothesis.settings.register_profile("sbus", deadline=None)
hypothesis.settings.load_profile("sbus")


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    """A bus with two workers and no further options."""
    with running_bus(tmp_path) as running:
        yield running

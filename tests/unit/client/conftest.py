"""A bus of bare packets, and a blocking client that is connected to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.client import blocking
from sbus.protocol.packets import Message
from tests.unit.client.fake_bus import GREETING, FakeBus


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeBus]:
    with FakeBus(tmp_path) as fake:
        yield fake


@pytest.fixture
def bus(fake: FakeBus) -> Iterator[blocking.Connection[Message]]:
    with blocking.connect(fake.address) as bus:
        assert fake.accept() == GREETING
        yield bus

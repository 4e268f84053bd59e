"""A bus of bare packets, and each client connected to it."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sbus.client import blocking
from sbus.protocol.packets import Message
from tests.unit.client.async_client import AsyncClient
from tests.unit.client.fake_bus import GREETING, FakeBus


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeBus]:
    with FakeBus(tmp_path) as fake:
        yield fake


@pytest.fixture(params=["blocking", "trio", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Callable[..., blocking.Connection[Message]]:
    """Connects with either client, by the names of the blocking one, to a bus that admits it."""
    clients = {
        "blocking": blocking.connect,
        "trio": partial(AsyncClient, "trio"),
        "asyncio": partial(AsyncClient, "asyncio"),
    }
    client = cast(Callable[..., blocking.Connection[Message]], clients[request.param])

    def connect(address: str, **options: object) -> blocking.Connection[Message]:
        fake = FakeBus.at.get(address)
        with fake.admitting() if fake else nullcontext():
            return client(address, **options)

    return connect


@pytest.fixture
def bus(
    fake: FakeBus, connect: Callable[..., blocking.Connection[Message]]
) -> Iterator[blocking.Connection[Message]]:
    with connect(fake.address) as bus:
        assert fake.accept() == GREETING
        yield bus

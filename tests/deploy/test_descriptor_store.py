"""A bus whose processes end in all ways, with a real systemd that keeps its clients."""

from typing import Any

import pytest

from tests.deploy import booted, store_probe
from tests.deploy.store_probe import BACKLOG, CLIENTS, MANY
from tests.support.descriptor_store import needs_refusal

pytestmark = [
    pytest.mark.skipif(booted.why_not() is not None, reason=str(booted.why_not())),
    needs_refusal,
]
NOTHING = {"connections": 0, "credentials": 0, "subscriptions": 0, "choices": 0}
WAYS = ["kill_front", "restart"]


@pytest.fixture(scope="module")
def seen() -> Any:
    return booted.boot(store_probe.__name__)


@pytest.mark.parametrize("way", WAYS)
def test_clients_lose_nothing_but_what_only_memory_held(seen: Any, way: str) -> None:
    assert seen[way]["state"] == "active"
    assert seen[way]["lost"] == NOTHING
    *kept, told, last = seen[way]["received"]
    assert last == "MSG flood\0behind"
    assert set(kept) == {"MSG flood\0PAYLOAD"}
    assert told == f"CMSG !/lost\0{BACKLOG - len(kept)}"


@pytest.mark.parametrize("way", WAYS)
def test_the_first_successor_serves(seen: Any, way: str) -> None:
    """systemd forgets how often it restarted a service that it is told to restart."""
    print(f"{way}: {CLIENTS} clients, {seen[way]['pause']:.2f} s")
    before, after = seen[way]["restarts"]
    assert after == (0 if way == "restart" else before + 1)


def test_clients_that_came_before_the_bus_are_stored(seen: Any) -> None:
    assert seen["early"] == {"lost": NOTHING, "were early": True}


def test_many_clients(seen: Any) -> None:
    print(f"{MANY} clients: {seen['many']['pause']:.2f} s")
    assert seen["many"]["lost"] == NOTHING


def test_an_upgraded_bus_is_kept(seen: Any) -> None:
    assert seen["after an upgrade"] == NOTHING


def test_a_stop_tells_clients_and_empties_the_store(seen: Any) -> None:
    (told,) = seen["stopped"]["told"]
    assert told.startswith("CMSG !/error\0stopping ")
    assert seen["stopped"]["left"] == 0


def test_clients_stay_while_the_next_bus_cannot_start(seen: Any) -> None:
    assert seen["mended"] == NOTHING

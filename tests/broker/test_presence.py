"""Clients take names under rules, and faster than they may.

What they are told: `tests/protocol/09-presence.t`.
"""

import time
from pathlib import Path

from tests.support.bus import running_bus
from tests.support.presence import join, leave, members
from tests.support.processes import clients_on_each, several_clients

EVERYBODY = b"!/presence/*/*"


def test_rules_say_who_sees_whom_and_what_a_will_may_say(tmp_path: Path) -> None:
    rules = """
        [[rules]]
        deny = ["subscribe"]
        keys = ["!/presence/*/hidden*"]
        [[rules]]
        deny = ["publish"]
        keys = ["forbidden/"]
    """
    configuration = tmp_path / "sbus.toml"
    configuration.write_text(rules)
    with (
        running_bus(tmp_path, "--config", str(configuration)) as bus,
        clients_on_each(bus, 2, 2) as ((watcher, hidden), (_, seen)),
    ):
        watcher.control(b"!/notices/on")
        watcher.sub(b"!/presence/*/hidden-1")
        assert watcher.receive().startswith(b"CMSG !/error\0not-allowed ")
        watcher.sub(EVERYBODY)
        watcher.whoami()
        assert join(hidden, b"x", b"forbidden/key\0") == "not-allowed"
        assert join(hidden, b"hidden-1") == ""
        assert join(seen, b"seen") == ""
        assert b"/seen\0join" in watcher.receive()
        assert [it.name for it in members(watcher, b"*/*")] == [b"seen"]
        leave(hidden)
        assert watcher.sync() == []


def test_names_are_taken_and_given_up_at_the_pace_of_their_user(tmp_path: Path) -> None:
    """What is told of names counts as messages, and waits as those do."""
    with (
        running_bus(tmp_path, "--limit", "user_messages_per_second_max=10") as bus,
        several_clients(bus, 2) as (watcher, fickle),
    ):
        watcher.sub(EVERYBODY)
        watcher.whoami()
        began_at = time.monotonic()
        for _ in range(10):
            fickle.send(b"CMSG !/join\0fickle")
            fickle.send(b"CMSG !/leave")
        for _ in range(5):
            assert b"/fickle\0" in watcher.receive()
        told = 5 + len(watcher.sync())
        seconds = time.monotonic() - began_at
        assert told <= 3 + 10 * seconds

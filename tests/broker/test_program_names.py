"""Scripts have their own names wherever a person reads of them, not that of their interpreter."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus.client.admin import AdminConnection
from sbus.client.message_joiner import MonitoredMessage
from sbus.protocol.admin import Clients, Subs
from sbus.protocol.admin_results import ClientsResult, SubsResult
from sbus.unix import script_names
from tests.support.admin import administer
from tests.support.bus import Bus
from tests.support.streams import events_of, messages_of, read_to_end
from tests.support.threads import wait_until

SCRIPT = """
import socket, sys
bus = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
bus.connect(sys.argv[1])
bus.send(b"SUB a")
for line in sys.stdin:
    bus.send(b"MSG k\\0")
"""
NAME = "lamps-\\x0a.py"


@pytest.fixture
def script(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[bytes]]:
    """A client of the bus with a newline in its name; it publishes for each line that it reads."""
    monkeypatch.setattr(script_names, "_ANSWER_SECONDS_MAX", 10.0)
    path = tmp_path / "lamps-\n.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-u", str(path), bus.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process, administer(bus) as admin:
        wait_until(lambda: admin.ask("subs")["subscriptions"], "it is there")
        yield process
        process.kill()


def test_everything_that_is_shown_has_the_name_of_a_script(
    bus: Bus, script: subprocess.Popen[bytes]
) -> None:
    def shown() -> str:
        (client,) = json.loads(bus.sbusctl("clients", "--json").stdout)["clients"]
        return str(client["program"])

    with AdminConnection(bus.address) as asking:
        (listed,) = asking.ask(Clients(), ClientsResult).clients
        (subscription,) = asking.ask(Subs(), SubsResult).subscriptions
    assert (listed.program, subscription.program) == (NAME, NAME)
    wait_until(lambda: shown() == NAME, "sbusctl has had the time to look")
    with messages_of(bus) as messages, events_of(bus) as events, bus.connect() as other:
        other.sub(b"k")
        other.sync()
        assert script.stdin is not None
        script.stdin.write(b"\n")
        script.stdin.flush()
        assert other.receive() == b"MSG k\0"
        first, *_ = read_to_end(messages, other)
        assert isinstance(first, MonitoredMessage)
        assert first.program == NAME
        with administer(bus) as admin:
            (client, _) = admin.ask("clients")["clients"]
            admin.ask("move", client=client["client"], worker=1 - client["worker"])
        moved = events.next("client-moved")
    assert moved["program"] == NAME
    assert f"pid {script.pid} ({NAME})" in moved["text"]

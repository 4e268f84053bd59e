"""A durable channel of several buses is recorded: each message in one row, whatever is killed."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sbus
from sbus.pipeline.store.reader import Recording, Tables
from tests.support.bridges import NatsServer, nats_server, needs_nats, running_bridge, wait_until
from tests.support.bus import Bus, running_bus
from tests.support.recorder_process import Recorder, recorders, rows_of

pytestmark = needs_nats

KILLS = 2
CONFIG = """
[bridge]
origin = "{name}"
host = "host-{name}"
state = "."
[channels.all]
patterns = ["all/"]
[channels.all.durable]
[links.office]
servers = ["{url}"]
{way} = ["all"]
"""


class Scene:
    """Buses `a` and `b` export a channel; its stream is recorded."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.recording = directory / "recording"
        self.server: NatsServer = stack.enter_context(
            nats_server(directory, "-js", "-sd", str(directory / "jetstream"))
        )
        self.buses: dict[str, Bus] = {}
        for name in "ab":
            (directory / name).mkdir()
            bus = self.buses[name] = stack.enter_context(running_bus(directory / name))
            bridge = stack.enter_context(
                running_bridge(bus, directory / name, self._config(name, "export"))
            )
            bridge.wait_reading()
        self._file = directory / "recorder.toml"
        self._file.write_text(self._config("recorder", "import"))
        self._recorders = stack.enter_context(recorders(directory))

    def _config(self, name: str, way: str) -> str:
        return CONFIG.format(name=name, url=self.server.url, way=way)

    def record(self, file_bytes_max: int | None = None) -> Recorder:
        options = ("--channel", "all", "--bridge", str(self._file), "--grace-hours", "0")
        rolling = ("--roll-bytes", "20000")
        return self._recorders.start(
            "/nowhere", self.recording, *options, *rolling, file_bytes_max=file_bytes_max
        )

    def publish(self, name: str, first: int, last: int) -> None:
        with sbus.blocking.connect(self.buses[name].address) as bus:
            bus.publish_many(f"all/{name}", (str(it) for it in range(first, last + 1)))
            bus.sync()

    def tables(self) -> Tables:
        return Recording(self.recording).tables("messages")

    def wait_rows(self, count: int) -> None:
        wait_until(lambda: sum(table.end for table in self.tables().values()) >= count)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """By origin."""
        found = [rows_of(table, table.earliest, table.end) for table in self.tables().values()]
        return {rows[0]["bus"]: rows for rows in found}


@contextmanager
def scene(directory: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(directory, stack)


def test_each_message_has_one_row_whatever_is_killed_or_full(tmp_path: Path) -> None:
    chance = random.Random(1)
    with scene(tmp_path) as here:
        sent = 0
        for _ in range(KILLS):
            recorder = here.record()
            for name in here.buses:
                here.publish(name, sent + 1, sent + 1_000)
            sent += 1_000
            here.wait_rows(2 * sent - chance.randrange(1, 1_900))
            recorder.kill()
        starved = here.record(file_bytes_max=3_000)
        for name in here.buses:
            here.publish(name, sent + 1, sent + 1_000)
        sent += 1_000
        assert starved.wait() == 1
        assert "stopped, messages cannot be written" in starved.stderr_text()
        here.server.kill()
        recorder = here.record()
        here.server.start()
        here.wait_rows(2 * sent)
        recorder.stop()
        assert "Traceback" not in recorder.stderr_text()
        found = here.rows()
    assert found.keys() == {"a", "b"}
    for name, rows in found.items():
        numbers = list(range(1, sent + 1))
        assert [int(row["value"]) for row in rows] == numbers
        assert [row["number"] for row in rows] == numbers
        assert {(row["key"], row["host"]) for row in rows} == {(f"all/{name}", f"host-{name}")}
        assert {row["kind"] for row in rows} == {"MSG"}
        assert len({row["epoch"] for row in rows}) == 1
        assert None not in {row["uid"] for row in rows} | {row["program"] for row in rows}

"""Recording a channel: each message has one row, wherever the recorder is killed."""

import asyncio
import math
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbus.bridge.configuration import parse_configuration
from sbus.bridge.durable_messages import ACKED
from sbus.bridge.ends import End, encode_end
from sbus.bridge.envelope import HEADER
from sbus.errors import ConfigurationError
from sbus.pipeline.cli import record as command
from sbus.pipeline.recorder.channel_recorder import ChannelRecording
from sbus.pipeline.recorder.recorder import Plan
from sbus.pipeline.store.reader import Recording
from sbus.pipeline.store.retention import Retention
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.writer import Rolling
from tests.support.recorder_process import rows_of

CONFIG = b"""
[bridge]
state = "."
[channels.all]
patterns = ["all/"]
[channels.all.durable]
[channels.live]
patterns = ["live/"]
[links.office]
servers = ["nats://127.0.0.1:1"]
export = ["live"]
import = ["all"]
"""
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Killed(BaseException):
    """Stands for SIGKILL."""


def open_recording(directory: Path, opened: ExitStack, channel: str = "all") -> ChannelRecording:
    plan = Plan(
        directory=directory,
        identity=RecorderIdentity.of("alder", "/run/sbus.socket"),
        table=None,
        address=None,
        options={},
        patterns=(),
        connect_admin=None,
        probe=False,
        flush_seconds=0.1,
        flush_rows=1,
        snapshot_seconds=1.0,
        rolling=Rolling(2_000, 3_600.0),
        retention=Retention(seconds=None, bytes=None, grace_hours=1),
    )
    bridges = parse_configuration(CONFIG, "/run/sbus.socket")
    return ChannelRecording(bridges, channel, plan, opened, print)


def message(sequence: int, origin: str, epoch: int, number: int, acked: int) -> Any:
    """As the stream brings it."""
    return SimpleNamespace(
        subject=f"sbus.d.all.{origin}.all.x",
        headers={HEADER: f"1 {epoch:x} {number} {origin} host-{origin} 7 lampd", ACKED: str(acked)},
        data=b"%d" % number,
        metadata=SimpleNamespace(
            sequence=SimpleNamespace(stream=sequence),
            timestamp=BEGIN + timedelta(seconds=sequence),
        ),
    )


@st.composite
def streams(draw: st.DrawFn) -> list[Any]:
    """What two origins have sent in some epochs. Some messages are missing, though none after the
    last that is there, and some are behind later ones that were under way together with them."""
    sent: list[list[tuple[str, int, int, int]]] = []
    for origin in "ab":
        own = []
        for epoch in range(1, draw(st.integers(1, 3)) + 1):
            number = 1
            while number < 9:
                run = list(range(number, number + draw(st.integers(1, 4))))
                kept = [it for it in run if draw(st.integers(0, 5))]
                own += [(origin, epoch, it, number - 1) for it in draw(st.permutations(kept))]
                number = run[-1] + 1
            own.append((origin, epoch, number, number - 1))
        sent.append(own)
    merged = []
    while any(sent):
        own = draw(st.sampled_from([it for it in sent if it]))
        merged.append(own.pop(0))
    return [message(at, *it) for at, it in enumerate(merged, start=1)]


def record(directory: Path, stream: list[Any], batch: int, notes: int | None) -> bool:
    """Record the rest of the stream; returns whether the recorder was killed, at this note."""
    with ExitStack() as opened:
        recording = open_recording(directory, opened)
        recording.ledgers = recording.progress.ledgers()
        recording._look_back_at = math.inf
        note, left = recording.progress.note, [notes]

        def note_or_die(*place: Any) -> None:
            if left[0] is not None:
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
            note(*place)

        recording.progress.note = note_or_die  # type: ignore[assignment,method-assign]

        async def deliver() -> None:
            while rest := stream[max(0, recording.progress.next_in_stream - 1) :]:
                before = recording.progress.next_in_stream
                await recording.deliver(rest[:batch])
                if recording.progress.next_in_stream == before:
                    await recording.deliver(rest)
                    return

        try:
            asyncio.run(deliver())
        except Killed:
            return True
    return False


def rows(directory: Path) -> dict[str, list[tuple[Any, ...]]]:
    columns = ("kind", "epoch", "number", "lost", "host", "uid", "program")
    return {
        own[0]["bus"]: [tuple(row[name] for name in columns) for row in own]
        for table in Recording(directory).tables("messages").values()
        if (own := rows_of(table, table.earliest, table.end))
    }


TWO_EPOCHS_AT_ONCE = [("a", 1, 1, 0), ("b", 1, 1, 0), ("a", 2, 1, 0), ("a", 2, 2, 1)]


@example([message(at, *it) for at, it in enumerate(TWO_EPOCHS_AT_ONCE, start=1)], [(3, 1)])
@settings(max_examples=3 * settings().max_examples // 20)
@given(streams(), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=4))
def test_recorders_that_are_killed_leave_the_rows_of_one_that_is_not(
    stream: list[Any], kills: list[tuple[int, int]]
) -> None:
    with TemporaryDirectory() as whole, TemporaryDirectory() as killed:
        record(Path(whole), stream, 1_000, None)
        for batch, notes in kills:
            record(Path(killed), stream, batch, notes)
        record(Path(killed), stream, 5, None)
        expected = rows(Path(whole))
        assert rows(Path(killed)) == expected
    for origin, own in expected.items():
        check(origin, own, stream)


def check(origin: str, own: list[tuple[Any, ...]], stream: list[Any]) -> None:
    """Every message is there, and between them what is missing."""
    sent = sorted(
        (epoch, int(number))
        for _, epoch, number, via, *_ in (it.headers[HEADER].split() for it in stream)
        if via == origin
    )
    known = (f"host-{origin}", 7, "lampd")
    assert [row[1:3] for row in own if row[0] == "MSG"] == sent
    assert all(row[4:] == known for row in own if row[0] == "MSG")
    place = (own[0][1], own[0][2] - (own[0][3] or 1))
    for kind, epoch, number, lost, *_ in own:
        if kind == "GAP" and lost is None:
            assert int(epoch, 16) > int(place[0], 16)
            place = (epoch, 0)
        else:
            place = (place[0], place[1] + (lost or 1))
            assert (epoch, number) == place


def test_what_was_removed_from_the_end_of_a_stream_is_a_gap_once(tmp_path: Path) -> None:
    async def read_on(place: int, batch: list[Any]) -> None:
        with ExitStack() as opened:
            recording = open_recording(tmp_path, opened)
            recording.ledgers = recording.progress.ledgers()
            recording._look_back_at = math.inf
            recording._expected = place
            for origin in "ab":
                headers = encode_end(End("1", 3, 7), origin)
                told: Any = SimpleNamespace(subject=f"sbus.e.all.{origin}", headers=headers)
                await recording._ends.hear(told)
            await recording.deliver(batch)

    asyncio.run(read_on(2, [message(1, "a", 1, 1, 0)]))
    for _ in range(2):
        asyncio.run(read_on(8, []))
        found = {origin: [row[:4] for row in own] for origin, own in rows(tmp_path).items()}
        assert found == {
            "a": [("MSG", "1", 1, None), ("GAP", "1", 3, 2)],
            "b": [("GAP", "1", None, None)],
        }


def test_nothing_that_an_origin_can_send_ends_the_recording(tmp_path: Path) -> None:
    most = 2**63 - 1
    places = [(1, 9 * 10**18, 7), (2, most, 9 * 10**18), (3, 5, most), (4, 3, -9), (5, 0, 0)]
    hostile = [message(at, "a", *it) for at, it in enumerate(places, start=1)]
    hostile[3].headers[HEADER] = "1 4 3 a ../.. x =2f"
    stranger = message(6, "b", 1, 1, 0)
    stranger.headers[HEADER] = f"1 1 1 b {'x' * 999} 99999999999 =FF"
    assert not record(tmp_path, [*hostile, stranger, message(7, "a", 6, 1, 0)], 9, None)
    found = rows(tmp_path)
    assert found["a"][-1][:3] == ("MSG", "6", 1)
    assert found["b"] == [("MSG", "1", 1, None, "b", None, "\\xff")]


def test_only_a_durable_channel_of_a_link_is_recorded(tmp_path: Path) -> None:
    for name in ("live", "none"):
        with pytest.raises(ConfigurationError, match=f"no link has a durable channel '{name}'"):
            open_recording(tmp_path, ExitStack(), name)


def test_a_channel_is_recorded_whole() -> None:
    for more in (["--probe", "rec"], ["--plain", "rec"], ["rec", "all/"]):
        done = CliRunner().invoke(command.record, ["--channel", "all", *more])
        assert done.exit_code == 2
        assert "--channel records all of it: no PATTERN, --plain, --probe" in done.output


def test_two_recorders_of_a_channel_exclude_each_other(tmp_path: Path) -> None:
    record(tmp_path, [message(1, "a", 1, 1, 0)], 9, None)
    with ExitStack() as opened:
        open_recording(tmp_path, opened)
        with pytest.raises(ConfigurationError, match="another recorder"):
            open_recording(tmp_path, opened)

"""Writing a recording, and continuing one whose recorder ended in any way."""

import shutil
from pathlib import Path

import pytest

from sbus.errors import ConfigurationError
from sbus.pipeline.store import commit_index, recorder_file
from sbus.pipeline.store.reader import Recording
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.sealed_table import SealedTableFailed
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.segment_file import RecordingDamaged, index_path, recover, segment_files
from sbus.pipeline.store.writer import RecordingWriter
from tests.support.file_sizes import file_size_limit
from tests.support.written import (
    IDENTITY,
    NOON_US,
    append,
    messages,
    offsets,
    seal,
    sealed_files,
    write_segments,
)

STAMPS = [NOON_US, NOON_US + 1, NOON_US + 2]


def abandoned(directory: Path, batches: int) -> Path:
    """Make a recording whose recorder was killed after these batches; returns its segment file."""
    original = directory.with_name("original")
    with RecordingWriter(original, IDENTITY) as recording:
        for _ in range(batches):
            append(recording, STAMPS)
        shutil.copytree(original, directory)
    (segment,) = directory.glob("*/hot/messages-*.arrows")
    return segment


def test_an_empty_recording_has_no_rows(tmp_path: Path) -> None:
    write_segments(tmp_path)
    assert (messages(tmp_path).earliest, messages(tmp_path).end) == (0, 0)
    assert offsets(messages(tmp_path)) == []


def test_a_plan_reads_only_its_offsets(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS, STAMPS, STAMPS)
    assert offsets(messages(tmp_path), 2, 7) == [2, 3, 4, 5, 6]
    assert offsets(messages(tmp_path), 9, 12) == []


@pytest.mark.parametrize("torn", ["segment", "index"])
def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path: Path, torn: str) -> None:
    segment = abandoned(tmp_path / "killed", 3)
    data, index = segment.read_bytes(), index_path(segment).read_bytes()
    whole = {
        "segment": (data, range(0, len(data) + 1, 41)),
        "index": (index, range(len(index) + 1)),
    }
    _, cuts = whole[torn]
    for cut in cuts:
        segment.write_bytes(data[:cut] if torn == "segment" else data)
        index_path(segment).write_bytes(index[:cut] if torn == "index" else index)
        end = recover(segment)
        assert end % 3 == 0
        assert len(index_path(segment).read_bytes()) == end // 3 * 32
        assert offsets(messages(tmp_path / "killed")) == list(range(end))
        if torn == "index":
            assert end == cut // 32 * 3


def test_a_recorder_continues_after_a_torn_tail(tmp_path: Path) -> None:
    segment = abandoned(tmp_path / "killed", 2)
    with segment.open("ab") as file:
        file.write(b"torn")
    with index_path(segment).open("ab") as file:
        file.write(b"also torn")
    with RecordingWriter(tmp_path / "killed", IDENTITY) as recording:
        assert recording.tables["messages"].next_offset == 6
        append(recording, STAMPS)
    assert offsets(messages(tmp_path / "killed")) == list(range(9))


def test_a_recording_is_empty_before_its_first_segment_file_is_there(tmp_path: Path) -> None:
    (tmp_path / IDENTITY.recorder).mkdir()
    recorder_file.begin(tmp_path, IDENTITY, None)
    (table,) = Recording(tmp_path).tables("messages").values()
    assert (table.earliest, table.end, table.files) == (0, 0, ())


def test_two_recorders_of_one_bus_exclude_each_other(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, IDENTITY):
        with pytest.raises(ConfigurationError, match="another recorder"):
            RecordingWriter(tmp_path, IDENTITY)
        with RecordingWriter(tmp_path, RecorderIdentity.of("Host.example", "/run/other.socket")):
            pass
    with RecordingWriter(tmp_path, IDENTITY):
        pass


def test_recordings_of_hosts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    identities = [RecorderIdentity.of("localhost", "/run/sbus.socket", m) for m in ("1", "2")]
    for number, identity in enumerate(identities):
        with RecordingWriter(tmp_path, identity) as recording:
            append(recording, STAMPS[number:])
            recording.tables["messages"].roll()
            Sealer(tmp_path, recording.recorder).seal()
    tables = Recording(tmp_path).tables("messages")
    assert sorted(table.end for table in tables.values()) == [2, 3]


def test_tables_that_were_copied_into_one_are_refused(tmp_path: Path) -> None:
    """Their logs have replaced each other in part."""
    for host in ("alder", "birch"):
        with RecordingWriter(tmp_path / host, RecorderIdentity.of(host, "/run/bus")) as recording:
            append(recording, STAMPS)
            recording.tables["messages"].roll()
            Sealer(tmp_path / host, recording.recorder).seal()
        shutil.copytree(tmp_path / host, tmp_path / "all", dirs_exist_ok=True)
    with pytest.raises(SealedTableFailed, match="several tables"):
        Recording(tmp_path / "all").tables("messages")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_recordings_of_one_recorder_are_not_put_together(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    for number in (0, 1):
        write_segments(tmp_path / f"{number}", STAMPS[number:])
    for number in order:
        shutil.copytree(tmp_path / f"{number}", tmp_path / "all", dirs_exist_ok=True)
    with pytest.raises(ConfigurationError, match="several recordings of one recorder"):
        messages(tmp_path / "all")
    with pytest.raises(ConfigurationError, match="several recordings of one recorder"):
        RecordingWriter(tmp_path / "all", IDENTITY)
    shutil.copytree(tmp_path / "0", tmp_path / "copy")
    shutil.copytree(tmp_path / "0", tmp_path / "copy", dirs_exist_ok=True)
    assert offsets(messages(tmp_path / "copy")) == [0, 1, 2]


def test_a_recording_of_another_version_is_refused(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS)
    (about,) = tmp_path.glob("*/recorder-*.json")
    about.write_bytes(about.read_bytes().replace(b'"version": 2', b'"version": 1'))
    with pytest.raises(ConfigurationError, match="is of version 1; this program understands 2"):
        RecordingWriter(tmp_path, IDENTITY)
    with pytest.raises(ConfigurationError, match="is of version 1; this program understands 2"):
        Recording(tmp_path).check()


def test_a_flipped_bit_in_a_committed_batch_is_an_error(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS, STAMPS)
    first, _, _ = sorted(tmp_path.glob("*/hot/messages-*.arrows"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 4
    first.write_bytes(data)
    with pytest.raises(RecordingDamaged, match=first.name):
        offsets(messages(tmp_path))
    with pytest.raises(RecordingDamaged, match=first.name):
        seal(tmp_path)
    assert [(file.first, file.end) for file in sealed_files(tmp_path)] == [(3, 6)]
    assert offsets(messages(tmp_path)) == [3, 4, 5], "others are sealed"
    assert first.with_suffix(".damaged").exists()


def test_the_index_has_the_newest_time_of_each_batch(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, IDENTITY) as writer:
        append(writer, [NOON_US + 7, NOON_US + 9, NOON_US + 8])
        append(writer, [NOON_US])
        (path,) = segment_files(writer.home, "messages")
        entries = commit_index.parse(index_path(path).read_bytes())
    assert [entry.newest_us for entry in entries] == [NOON_US + 9, NOON_US]


def test_a_full_disk_leaves_committed_rows_intact(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, IDENTITY) as recording:
        append(recording, STAMPS)
        (segment,) = tmp_path.glob("*/hot/messages-*.arrows")
        size = segment.stat().st_size
        with file_size_limit(size + 100), pytest.raises(OSError, match="File too large"):
            append(recording, STAMPS)
        assert segment.stat().st_size == size, "nothing torn is left"
        assert offsets(messages(tmp_path)) == [0, 1, 2]
    with RecordingWriter(tmp_path, IDENTITY) as recording:
        append(recording, STAMPS)
    assert offsets(messages(tmp_path)) == list(range(6))


def test_a_disk_that_was_full_before_changes_nothing(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS)
    with (
        file_size_limit(0),
        pytest.raises(OSError, match="File too large"),
        RecordingWriter(tmp_path, IDENTITY) as recording,
    ):
        append(recording, STAMPS)
    assert offsets(messages(tmp_path)) == [0, 1, 2]
    with RecordingWriter(tmp_path, IDENTITY) as recording:
        assert recording.tables["messages"].next_offset == 3

"""Writing a recording, and continuing one whose recorder ended in any way."""

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from sbus.errors import ConfigurationError
from sbus.pipeline.store import manifest, rewriting
from sbus.pipeline.store.reader import Recording
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.segment_file import RecordingDamaged, index_path, recover
from sbus.pipeline.store.writer import RecordingWriter
from tests.support.threads import Task
from tests.support.written import (
    IDENTITY,
    NOON_US,
    RECORDER,
    append,
    files,
    messages,
    offsets,
    seal,
    write_segments,
)

STAMPS = [NOON_US, NOON_US + 1, NOON_US + 2]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file can grow beyond this, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def abandoned(directory: Path, batches: int) -> Path:
    """Make a recording whose recorder was killed after these batches; returns its segment file."""
    original = directory.with_name("original")
    with RecordingWriter(original, IDENTITY) as writer:
        for _ in range(batches):
            append(writer, STAMPS)
        shutil.copytree(original, directory)
    (segment,) = directory.glob("*/hot/*.arrows")
    return segment


def test_an_empty_recording_has_a_manifest_and_no_rows(tmp_path: Path) -> None:
    write_segments(tmp_path)
    assert manifest.load(tmp_path, RECORDER).tables == {}
    assert (messages(tmp_path).earliest, messages(tmp_path).end) == (0, 0)
    assert offsets(messages(tmp_path)) == []


def test_committed_rows_can_be_read_while_the_file_is_written(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, IDENTITY) as writer:
        for count in range(1, 4):
            append(writer, STAMPS)
            assert offsets(messages(tmp_path)) == list(range(3 * count))
        (file,) = files(tmp_path)
        assert (file.first, file.end) == (0, None)
    (file,) = files(tmp_path)
    assert (file.first, file.end, file.rows) == (0, 9, 9)
    assert (file.min_timestamp_us, file.max_timestamp_us) == (NOON_US, NOON_US + 2)


def test_offsets_continue_where_the_last_recorder_ended(tmp_path: Path) -> None:
    for _ in range(3):
        with RecordingWriter(tmp_path, IDENTITY) as writer:
            append(writer, STAMPS)
    assert offsets(messages(tmp_path)) == list(range(9))


def test_a_plan_reads_only_its_offsets(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS, STAMPS, STAMPS)
    assert offsets(messages(tmp_path), 2, 7) == [2, 3, 4, 5, 6]
    assert offsets(messages(tmp_path), 9, 12) == []


@pytest.mark.parametrize("torn", ["segment", "index"])
def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path: Path, torn: str) -> None:
    segment = abandoned(tmp_path / "killed", 3)
    (listed,) = files(tmp_path / "killed")
    data, index = segment.read_bytes(), index_path(segment).read_bytes()
    whole = {
        "segment": (data, range(0, len(data) + 1, 41)),
        "index": (index, range(len(index) + 1)),
    }
    _, cuts = whole[torn]
    for cut in cuts:
        segment.write_bytes(data[:cut] if torn == "segment" else data)
        index_path(segment).write_bytes(index[:cut] if torn == "index" else index)
        rest = recover(tmp_path / "killed", listed)
        assert rest.end is not None
        assert rest.end % 3 == 0
        assert rest.bytes == len(segment.read_bytes())
        assert len(index_path(segment).read_bytes()) == rest.end // 3 * 32
        assert offsets(messages(tmp_path / "killed")) == list(range(rest.end))
        if torn == "index":
            assert rest.end == cut // 32 * 3


def test_a_recorder_continues_after_a_torn_tail(tmp_path: Path) -> None:
    segment = abandoned(tmp_path / "killed", 2)
    with segment.open("ab") as file:
        file.write(b"torn")
    with index_path(segment).open("ab") as file:
        file.write(b"also torn")
    with RecordingWriter(tmp_path / "killed", IDENTITY) as writer:
        assert writer.tables["messages"].next_offset == 6
        append(writer, STAMPS)
    assert offsets(messages(tmp_path / "killed")) == list(range(9))


def test_a_segment_file_that_was_never_listed_is_deleted(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS)
    stray = tmp_path / RECORDER / "hot" / "messages-00000000000000000003.arrows"
    stray.write_bytes(b"")
    index_path(stray).write_bytes(b"")
    with RecordingWriter(tmp_path, IDENTITY) as writer:
        assert not stray.exists()
        append(writer, STAMPS)
    assert offsets(messages(tmp_path)) == list(range(6))


def test_a_reused_file_name_is_not_deleted_with_its_predecessor(tmp_path: Path) -> None:
    """A segment file without committed rows is retired; the next one has the same name."""
    with (
        RecordingWriter(tmp_path, IDENTITY) as writer,
        file_size_limit(1_000),
        pytest.raises(OSError, match="File too large"),
    ):
        append(writer, STAMPS)
    (retired,) = manifest.load(tmp_path, RECORDER).retired
    with RecordingWriter(tmp_path, IDENTITY) as writer:
        with manifest.edit(tmp_path, RECORDER) as change:
            # As retention does after the grace period.
            (tmp_path / retired.path).unlink()
            task = Task(lambda: append(writer, STAMPS))
            assert not task.ends_within(0.2)
            assert not (tmp_path / retired.path).exists(), "it would be deleted now"
            change.forget_retired({retired.path})
        task.join()
        assert offsets(messages(tmp_path)) == [0, 1, 2]
    assert manifest.load(tmp_path, RECORDER).retired == []


def test_two_recorders_of_one_bus_exclude_each_other(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, IDENTITY):
        with pytest.raises(ConfigurationError, match="another recorder"):
            RecordingWriter(tmp_path, IDENTITY)
        with RecordingWriter(tmp_path, RecorderIdentity.of("Host.example", "/run/other.socket")):
            pass
    with RecordingWriter(tmp_path, IDENTITY):
        pass


def test_recordings_of_hosts_of_one_name_can_be_put_together(tmp_path: Path) -> None:
    """By a copy over one another, as directories are collected."""
    identities = [RecorderIdentity.of("localhost", "/run/sbus.socket", m) for m in ("1", "2")]
    for number, identity in enumerate(identities):
        with RecordingWriter(tmp_path / f"{number}", identity) as writer:
            append(writer, STAMPS[number:])
            writer.tables["messages"].roll()
            rewriting.seal(tmp_path / f"{number}", identity.recorder)
        shutil.copytree(tmp_path / f"{number}", tmp_path / "all", dirs_exist_ok=True)
    found = Recording(tmp_path / "all")
    tables = [found.snapshot(identity.recorder).table("messages") for identity in identities]
    assert [offsets(table) for table in tables] == [[0, 1, 2], [0, 1]]


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


def test_a_recorder_that_was_killed_before_its_first_manifest_begins_again(tmp_path: Path) -> None:
    home = tmp_path / RECORDER
    home.mkdir()
    (home / "incarnation-0123456789abcdef").touch()
    write_segments(tmp_path, STAMPS)
    assert offsets(messages(tmp_path)) == [0, 1, 2]


def test_a_recording_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS)
    (mark,) = (tmp_path / RECORDER).glob("incarnation-*")
    mark.unlink()
    begun = manifest.load(tmp_path, RECORDER)
    manifest.store(tmp_path, msgspec.structs.replace(begun, incarnation=""))
    write_segments(tmp_path, STAMPS)
    assert offsets(messages(tmp_path)) == list(range(6))


def test_a_flipped_bit_in_a_committed_batch_is_an_error(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS, STAMPS)
    first, _ = sorted(tmp_path.glob("*/hot/*.arrows"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 4
    first.write_bytes(data)
    with pytest.raises(RecordingDamaged, match=first.name):
        offsets(messages(tmp_path))
    with pytest.raises(RecordingDamaged, match=first.name):
        seal(tmp_path)
    assert [file.kind for file in files(tmp_path)] == ["hot", "parquet"], "others are sealed"


def test_a_full_disk_leaves_committed_rows_intact(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path, IDENTITY) as writer:
        append(writer, STAMPS)
        (segment,) = tmp_path.glob("*/hot/*.arrows")
        size = segment.stat().st_size
        with file_size_limit(size + 100), pytest.raises(OSError, match="File too large"):
            append(writer, STAMPS)
        assert segment.stat().st_size == size, "nothing torn is left"
        assert offsets(messages(tmp_path)) == [0, 1, 2]
    with RecordingWriter(tmp_path, IDENTITY) as writer:
        append(writer, STAMPS)
    assert offsets(messages(tmp_path)) == list(range(6))


def test_a_disk_that_was_full_before_changes_nothing(tmp_path: Path) -> None:
    write_segments(tmp_path, STAMPS)
    before = manifest.load(tmp_path, RECORDER)
    with (
        file_size_limit(0),
        pytest.raises(OSError, match="File too large"),
        RecordingWriter(tmp_path, IDENTITY) as writer,
    ):
        append(writer, STAMPS)
    assert manifest.load(tmp_path, RECORDER) == before
    assert offsets(messages(tmp_path)) == [0, 1, 2]

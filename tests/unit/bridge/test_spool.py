"""The spool: what was appended is there until it is released, whenever the bridge dies."""

import os
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.bridge.spool import Reached, Spool

records = st.binary(max_size=40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(records, max_size=4)),
        st.tuples(st.just("release"), st.integers(1, 5)),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("torn"), st.binary(min_size=1, max_size=7)),
    ),
    max_size=20,
)


@given(steps)
def test_keeps_what_is_not_released(schedule: list[tuple[str, object]]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "lamps.spool"
        spool = Spool(path)
        expected: deque[bytes] = deque()
        reached = Reached()
        for what, value in schedule:
            if what == "append":
                assert isinstance(value, list)
                reached = Reached("e", reached.last + len(value), 7, [1, 2])
                spool.append(value, reached)
                expected += value
            elif what == "release":
                assert isinstance(value, int)
                found, end = spool.first(value)
                assert found == list(expected)[:value]
                spool.release(end)
                for _ in found:
                    expected.popleft()
            else:
                spool.close()
                if what == "torn":
                    assert isinstance(value, bytes)
                    with path.open("ab") as file:
                        file.write(value)
                spool = Spool(path)
            assert spool.first(1_000)[0] == list(expected)
            assert spool.reached == reached
            if not expected:
                assert spool.waiting_bytes == 0 or what == "release"
        spool.close()


def test_is_emptied_when_all_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lamps.spool"
    spool = Spool(path)
    spool.append([b"a", b"b"], Reached())
    spool.release(spool.first(2)[1])
    assert os.path.getsize(path) == 0
    assert spool.waiting_bytes == 0
    spool.close()


def test_a_full_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "lamps.spool")
    spool.append([b"a"], Reached())
    with monkeypatch.context() as patched:
        whole = os.pwrite
        patched.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:-1], at))
        with pytest.raises(OSError, match="No space left"):
            spool.append([b"b"], Reached())
    spool.append([b"c"], Reached())
    assert spool.first(9)[0] == [b"a", b"c"]
    spool.close()


def test_stays_small_while_it_is_never_empty(tmp_path: Path) -> None:
    path = tmp_path / "lamps.spool"
    spool = Spool(path)
    spool.append([b"0" * 100_000], Reached())
    for number in range(1, 100):
        spool.append([b"%d" % number * 50_000], Reached())
        spool.release(spool.first(1)[1])
        assert path.stat().st_size < 3_000_000
    spool.close()
    assert Spool(path).first(2)[0] == [b"99" * 50_000]


def test_a_death_while_the_rest_moves_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lamps.spool"
    spool = Spool(path)
    spool.append([b"%d" % number * 300_000 for number in range(8)], Reached())
    for _ in range(3):
        spool.release(spool.first(1)[1])
    whole = os.copy_file_range

    def die(source: int, target: int, count: int, *offsets: int) -> int:
        whole(source, target, count // 2, *offsets)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "copy_file_range", die)
        with pytest.raises(KeyboardInterrupt):
            spool.release(spool.first(1)[1])
    spool.close()
    expected = [b"%d" % number * 300_000 for number in range(4, 8)]
    again = Spool(path)
    found = again.first(3)[0]
    assert found == expected[: len(found)]
    assert again.waiting_bytes == sum(len(it) + 8 for it in expected)
    again.close()

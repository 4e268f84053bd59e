"""A bridge and the client library read no clock that can be set: a jump of the time changes
nothing."""

import re
from pathlib import Path

import sbus

WALL_CLOCK = re.compile(
    r"\btime\.time(_ns)?\(|\bdatetime\b|CLOCK_REALTIME|\blocaltime\(|\bgmtime\("
)


def test_no_clock_that_can_be_set_is_read() -> None:
    root = Path(sbus.__file__).parent
    files = [file for part in ("bridge", "client") for file in (root / part).glob("*.py")]
    assert len(files) > 20
    assert [file.name for file in files if WALL_CLOCK.search(file.read_text())] == []

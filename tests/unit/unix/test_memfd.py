"""Files in memory: written whole, and closed if that fails."""

import os
from collections.abc import Callable

import pytest

from sbus.broker.config.settings import BusSettings, SettingsUpdate
from sbus.broker.config.settings import write_owning_memfd as write_settings
from sbus.broker.ipc.bus_record import BusRecord
from sbus.broker.ipc.bus_record import write_owning_memfd as write_record
from sbus.broker.ipc.records_file import make_records_file
from sbus.unix.memfd import make_memfd
from tests.support.file_sizes import file_size_limit


def test_a_memfd_has_its_content_and_is_not_inherited() -> None:
    memfd = make_memfd("name", b"content")
    assert os.pread(memfd, 100, 0) == b"content"
    assert not os.get_inheritable(memfd)
    os.close(memfd)


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_memfd("name", b"content"),
        lambda: write_settings(SettingsUpdate(BusSettings(workers=1))),
        lambda: write_record(BusRecord()),
        make_records_file,
    ],
)
def test_one_that_cannot_be_written_is_closed(make: Callable[[], int]) -> None:
    opened_before = os.listdir("/proc/self/fd")
    with file_size_limit(0), pytest.raises(OSError, match="File too large"):
        make()
    assert os.listdir("/proc/self/fd") == opened_before

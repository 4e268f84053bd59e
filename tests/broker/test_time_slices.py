"""The time slices of a bus's processes."""

from pathlib import Path

from sbus.limits import TIME_SLICE_NS
from tests.support.bus import running_bus
from tests.support.time_slices import needs_time_slices, time_slice_ns


@needs_time_slices
def test_every_process_of_a_bus_has_a_short_time_slice(tmp_path: Path) -> None:
    with running_bus(tmp_path, workers=2) as bus:
        pids = bus.pids()
        assert len(pids) == 4, "the front, the fork server and two workers"
        assert [time_slice_ns(pid) for pid in pids] == [TIME_SLICE_NS] * 4

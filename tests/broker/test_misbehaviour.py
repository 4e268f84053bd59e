"""Very many packets that break the protocol: they do not flood the log, and leave nothing behind.

What each of them costs its sender: `tests/protocol/12-refusals.t`.
"""

from tests.support.bus import Bus
from tests.support.processes import clients_on_each, descriptors_at_rest, wait_for_descriptors


def test_a_thousand_offenders_do_not_flood_the_log(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((same,), (other,)):
        before = descriptors_at_rest(bus)
        for number in range(1_000):
            with bus.connect() as offender:
                offender.send(b"nonsense %d" % number)
            if number % 100 == 0:
                same.whoami()
                other.whoami()
        with bus.connect() as last:  # reads to the end, so that all are served by then
            last.send(b"nonsense")
            assert last.receive() == b""
        wait_for_descriptors(bus, before)
        lines = bus.stderr_text().splitlines()
        assert 1 <= len(lines) <= 10, lines
        assert all(len(line) < 300 for line in lines)

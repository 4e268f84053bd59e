"""Real buses that sections use one after the other: a start takes as long as ten sections."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.protocol.configurations import Configuration
from tests.protocol.real_bus import RealBus
from tests.protocol.transcript import Section

_BUSES_MAX = 8


class Pool:
    """The buses that run, by what they were started with; the one used last stands last."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started = 0
        self._buses: dict[object, RealBus] = {}

    @contextmanager
    def lent(self, section: Section, configuration: Configuration) -> Iterator[RealBus]:
        """A bus for this section during the block, and for others if that does not use it up."""
        is_kept = configuration.event in ("restart", "resume")
        options = tuple(sorted(section.bus.items()))
        key = (options, configuration.workers, configuration.step, is_kept)
        if (bus := self._buses.pop(key, None)) is None:
            self._started += 1
            directory = self._directory / str(self._started)
            directory.mkdir()
            bus = RealBus(directory, section.bus, configuration)
        bus.place = configuration.place
        try:
            yield bus
        except BaseException as error:
            try:
                bus.close()
            except AssertionError as more:
                raise AssertionError(f"{error}\n{more}") from error
            raise
        if bus.is_used_up:
            bus.close()
            return
        self._buses[key] = bus
        if len(self._buses) > _BUSES_MAX:
            self._buses.pop(next(iter(self._buses))).close()

    def close(self) -> None:
        """End all buses; AssertionError if one of them has anything to complain about."""
        with ExitStack() as stack:
            while self._buses:
                stack.callback(self._buses.popitem()[1].close)

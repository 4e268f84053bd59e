"""How far a durable channel has been imported, in a file that outlives the bridge.

    0    the number in the stream of the last message that was delivered, plus 1; 0 for none yet
    8…   records: origin, epoch, and the number of the last message delivered; the last record of
         an origin counts, the others are epochs of the past

A number is one store of 8 bytes, made when the message was sent to the local bus. So a bridge that
is killed between the two delivers one message twice.
"""

import os
import struct
from pathlib import Path
from typing import Any, Final

from sbus.bridge.ledger import Ledger
from sbus.errors import ConfigurationError
from sbus.unix.state_file import map_file

_RECORD: Final = struct.Struct("<64s32sQ")
_NUMBER: Final = struct.Struct("<Q")
_LAST_AT: Final = _RECORD.size - _NUMBER.size
RECORDS_MAX: Final = 4_096


class Progress:
    """Of one channel."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        if len(self._places) > RECORDS_MAX // 2:
            self._forget_the_past()

    def _open(self) -> None:
        self._map = map_file(self._path, _NUMBER.size + RECORDS_MAX * _RECORD.size)
        self._find_places()

    def _find_places(self) -> None:
        self._places: dict[tuple[str, str], int] = {}
        for place in range(_NUMBER.size, len(self._map), _RECORD.size):
            if self._map[place]:
                try:
                    origin, epoch, _ = self._record(place)
                except UnicodeDecodeError as error:
                    raise ConfigurationError(f"{self._path} is no file of a bridge") from error
                self._places[origin, epoch] = place

    @property
    def next_in_stream(self) -> int:
        number: int = _NUMBER.unpack_from(self._map)[0]
        return number

    @next_in_stream.setter
    def next_in_stream(self, number: int) -> None:
        _NUMBER.pack_into(self._map, 0, number)

    def note(self, origin: str, epoch: str, number: int) -> None:
        """Everything up to this number was delivered. Raises ConfigurationError when full."""
        place = self._places.get((origin, epoch))
        if place is None:
            place = self._add(origin, epoch, number)
        _NUMBER.pack_into(self._map, place + _LAST_AT, number)

    def ledgers(self) -> dict[str, Ledger[Any]]:
        """Those to go on with."""
        found: dict[str, Ledger[Any]] = {}
        for place in self._places.values():
            origin, epoch, last = self._record(place)
            before = found.get(origin)
            found[origin] = Ledger(epoch, last, [*before.retired, before.epoch] if before else [])
        return found

    def snapshot(self) -> bytes:
        """All of it, to `restore`."""
        return self._map[: _NUMBER.size + len(self._places) * _RECORD.size]

    def restore(self, snapshot: bytes) -> None:
        """Forget what was noted since."""
        self._map[:] = snapshot.ljust(len(self._map), b"\0")
        self._find_places()

    def close(self) -> None:
        self._map.close()

    def _add(self, origin: str, epoch: str, number: int) -> int:
        if len(self._places) >= RECORDS_MAX:
            self._forget_the_past()
        if len(self._places) >= RECORDS_MAX:
            raise ConfigurationError(f"{self._path} is full: more origins than a channel can have")
        place = _NUMBER.size + len(self._places) * _RECORD.size
        data = _RECORD.pack(origin.encode(), epoch.encode(), number)
        # The first byte, which makes it a record, comes last.
        self._map[place + 1 : place + _RECORD.size] = data[1:]
        self._map[place] = data[0]
        self._places[origin, epoch] = place
        return place

    def _forget_the_past(self) -> None:
        """Make a new file with the last epoch of each origin."""
        last = {origin: place for (origin, _), place in self._places.items()}
        records = [self._map[place : place + _RECORD.size] for place in last.values()]
        new = self._path.with_suffix(".new")
        new.write_bytes(self._map[: _NUMBER.size] + b"".join(records))
        os.replace(new, self._path)
        self._map.close()
        self._open()

    def _record(self, place: int) -> tuple[str, str, int]:
        origin, epoch, last = _RECORD.unpack_from(self._map, place)
        return origin.rstrip(b"\0").decode(), epoch.rstrip(b"\0").decode(), last

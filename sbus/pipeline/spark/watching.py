"""Looking at a recording again and again, as a stream does a hundred times a second.

What a manifest and the index of the segment being written say is read when one of them is another
file, or has another size, than the last time; then all of it, at once. So an idle stream costs next
to nothing.

Knows the recording's files, and not Spark.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from sbus.pipeline import manifest
from sbus.pipeline.recording import Recording, TableSnapshot, index_path

Tables = dict[str, TableSnapshot]
"""One reading of a recording: a table of each recorder."""

_FileState = tuple[int, int, int] | None
"""Number, time of change and size of a file; None where there is none."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was read, and the states that its files had just before."""

    states: dict[Path, _FileState]
    table: TableSnapshot


class Watch:
    """The table `name` of the recording in `directory`; opens nothing until it is asked."""

    def __init__(self, directory: str, name: str) -> None:
        self._directory = directory
        self._name = name
        self._seen: dict[str, _Seen] = {}

    def tables(self) -> Tables:
        """What there is now. Raises ConfigurationError where there is no recording."""
        recording = Recording(self._directory)
        self._seen = {name: self._look(recording, name) for name in recording.recorders()}
        return {name: seen.table for name, seen in self._seen.items()}

    def _look(self, recording: Recording, recorder: str) -> _Seen:
        seen = self._seen.get(recorder)
        if seen is not None and all(_state(path) == was for path, was in seen.states.items()):
            return seen
        listing = recording.directory / recorder / manifest.NAME
        states = {listing: _state(listing)}
        snapshot = recording.snapshot(recorder)
        listed = snapshot.manifest.tables.get(self._name)
        for file in listed.files if listed is not None else ():
            if file.end is None:
                index = index_path(recording.directory / file.path)
                states[index] = _state(index)
        return _Seen(states, snapshot.table(self._name))


def _state(path: Path) -> _FileState:
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size

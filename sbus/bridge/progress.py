"""How far a durable channel has been imported, in a file that outlives the process. What is noted
is in the file when it is saved."""

from pathlib import Path
from typing import Any, Final

import msgspec

from sbus.bridge.ledger import Ledger
from sbus.unix.state_file import StateFile

ORIGINS_MAX: Final = 2_048
_EPOCHS_MAX: Final = 5
"""Of an origin, with those of the past."""
_BYTES_MAX: Final = 1_048_576


class _State(msgspec.Struct, frozen=True, array_like=True):
    next_in_stream: int = 0
    epochs: dict[str, list[tuple[str, int]]] = {}
    """By origin, each with the number of the last message delivered; the last epoch counts."""
    begins_at: int = 0
    has_removed: bool = False


class Progress:
    """Of one channel. Raises ConfigurationError."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, _State(), _BYTES_MAX)
        self.restore()

    def restore(self) -> None:
        """Forget what was noted since the last `save`."""
        state = self._file.state
        self._next_in_stream = state.next_in_stream
        self._epochs = {origin: [*epochs] for origin, epochs in state.epochs.items()}

    def save(self) -> None:
        self._write(next_in_stream=self._next_in_stream, epochs=self._epochs)
        self.restore()  # what is noted from now on is not in there

    def _write(self, **changes: Any) -> None:
        self._file.write(msgspec.structs.replace(self._file.state, **changes))

    @property
    def next_in_stream(self) -> int:
        """The number in the stream of the last message that was delivered, plus 1; 0 for none yet.
        To set it saves it, and nothing that was noted since the last `save`."""
        return self._next_in_stream

    @next_in_stream.setter
    def next_in_stream(self, number: int) -> None:
        self._next_in_stream = number
        self._write(next_in_stream=number)

    @property
    def begins_at(self) -> int:
        """The number in the stream of the first message that counts."""
        return self._file.state.begins_at

    def begin(self, reads_from: int, begins_at: int) -> None:
        """Read from there; what is before `begins_at` only tells how far its origins are."""
        self._next_in_stream = reads_from
        self._write(next_in_stream=reads_from, begins_at=begins_at)

    @property
    def has_removed(self) -> bool:
        """Whether the stream has ever removed messages that count, and were not read."""
        return self._file.state.has_removed

    def note_removed(self) -> None:
        if not self.has_removed:
            self._write(has_removed=True)

    def note(self, origin: str, epoch: str, number: int) -> None:
        """Everything up to this number was delivered."""
        epochs = self._epochs.setdefault(origin, [])
        if epochs and epochs[-1][0] == epoch:
            number = max(number, epochs.pop()[1])
        epochs.append((epoch, number))
        del epochs[:-_EPOCHS_MAX]

    def ledgers(self) -> dict[str, Ledger[Any]]:
        """Those to go on with."""
        return {
            origin: Ledger(*epochs[-1], [epoch for epoch, _ in epochs[:-1]])
            for origin, epochs in self._epochs.items()
        }

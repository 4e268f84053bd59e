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
    counts_from: int = 0
    read_to: int = 0
    has_missed: bool = False
    created: str = ""


class Progress:
    """Of one channel. Raises ConfigurationError."""

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, _State(), _BYTES_MAX)
        self.restore()
        if self._next_in_stream and not self.counts_from:  # from a version without that
            self._write(counts_from=self._next_in_stream, read_to=self._next_in_stream)

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
        self._write(next_in_stream=number, read_to=max(number, self._file.state.read_to))

    @property
    def counts_from(self) -> int:
        """The number in the stream of the first message that counts."""
        return self._file.state.counts_from

    @property
    def created(self) -> str:
        """When the stream was created; "" if that is not known."""
        return self._file.state.created

    def begin(self, created: str, reads_from: int, counts_from: int) -> None:
        """Read this stream from there; what is before `counts_from` only tells how far its origins
        are."""
        self._next_in_stream = reads_from
        self._write(
            created=created,
            next_in_stream=reads_from,
            counts_from=counts_from,
            read_to=counts_from,
        )

    def note_created(self, created: str) -> None:
        if not self.created:
            self._write(created=created)

    @property
    def has_missed(self) -> bool:
        """Whether the stream has ever removed messages that count before they were read."""
        return self._file.state.has_missed

    def note_removed(self, before: int) -> None:
        """What is missing before this number was removed."""
        if before > self._file.state.read_to:
            self._write(has_missed=True, read_to=before)

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

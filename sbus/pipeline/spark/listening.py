"""A connection to the bus that a thread of its own reads, for as long as the query runs.

Knows neither rows nor files: what arrives is handed on in the order of its arrival, and while that
takes its time nothing more is read, so that the bus's own limits hold.
"""

import threading
from collections.abc import Callable, Sequence

from sbus.client.blocking import Connection, connect
from sbus.client.inbox import Lost
from sbus.errors import ConfigurationError, PacketRefused, SbusError
from sbus.protocol.packets import Message

Item = Message | Lost
CONNECT_SECONDS_MAX = 10.0
READ_MESSAGES_MAX = 10_000
_LOOK_UP_SECONDS = 0.2
"""How long a listener that hears nothing takes to find out that it is to stop."""


class Listener:
    """Hears everything that is published from now on and matches one of the patterns.

    Raises BusError, and ConfigurationError where the bus cannot be reached or refuses a pattern.
    """

    def __init__(self, address: str, patterns: Sequence[bytes]) -> None:
        self._fault: Exception | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._bus: Connection[Item] = connect(
            address, losses="report", timeout_seconds=CONNECT_SECONDS_MAX
        )
        try:
            for pattern in patterns:
                self._bus.subscribe(pattern)
            self._bus.sync(timeout_seconds=CONNECT_SECONDS_MAX)
        except PacketRefused as refusal:
            self._bus.close()
            raise ConfigurationError(f"subscribe: the bus refuses it: {refusal}") from refusal
        except BaseException:
            self._bus.close()
            raise

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self, take: Callable[[list[Item]], None]) -> None:
        """Hand what arrives to `take`, in another thread."""
        self._thread = threading.Thread(target=self._run, args=(take,), daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises why nothing is heard any more: the connection ended, or `take` raised."""
        if self._fault is not None:
            raise self._fault

    def announce_stop(self) -> None:
        """Nothing more is handed on once `take` has returned."""
        self._stopping.set()

    def close(self) -> None:
        """Returns when `take` is not called any more."""
        self.announce_stop()
        if self._thread is not None:
            self._thread.join()
        self._bus.close()

    def _run(self, take: Callable[[list[Item]], None]) -> None:
        try:
            while not self.stopping:
                try:
                    items = self._bus.receive_many(
                        READ_MESSAGES_MAX, timeout_seconds=_LOOK_UP_SECONDS
                    )
                except TimeoutError:
                    continue
                take(items)
        except (SbusError, OSError) as fault:
            self._fault = fault

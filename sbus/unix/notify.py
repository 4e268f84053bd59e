"""Notifications to the service manager, by the protocol of sd_notify(3).

A notification is one datagram of `NAME=VALUE` lines to the socket that `NOTIFY_SOCKET` names. There
is no reply; without a service manager, nothing is sent. If `WATCHDOG_USEC` is set, the manager ends
a process that has not sent `WATCHDOG=1` for that time. If `FDSTORE` is set, it keeps up to that
number of descriptors for the next process of the service.

A notification that cannot be delivered is logged and has no other effect: a bus outlives its
service manager. The event loop never waits for a busy manager: a notification that finds no room is
sent by a thread, and so are those that follow.
"""

import array
import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from queue import SimpleQueue
from typing import Self

from sbus.errors import AddressError, ConfigurationError
from sbus.unix.address import SUN_PATH_BYTES

_LAST_SECONDS_MAX = 2.0
"""How long a process that serves nobody any more waits for a busy manager."""


def has_service_manager() -> bool:
    """Whether this process was started by one that it can notify."""
    return bool(os.environ.get("NOTIFY_SOCKET"))


class Notifier:
    """Notifies the service manager at `address`, or nobody if that is None. `watchdog_seconds`: how
    often the manager expects a sign of life at least; None for never."""

    def __init__(
        self,
        address: bytes | None = None,
        watchdog_seconds: float | None = None,
        report: Callable[[str], None] = lambda text: None,
        stored_max: int = 0,
    ) -> None:
        self._address = address
        self.sock = None if address is None else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        """Kept open, because later there may be no descriptor left. Forked processes close it."""
        self.watchdog_seconds = None if address is None else watchdog_seconds
        self._is_over = False
        self.stored_max = 0 if address is None else stored_max
        """How many descriptors the manager keeps."""
        self._report = report
        self._reported: str | None = None
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        """Sends everything once the manager has been busy."""

    @classmethod
    def of_environment(
        cls, report: Callable[[str], None], environment: MutableMapping[str, str] = os.environ
    ) -> Self:
        """A notifier for the manager in the environment, whose variables are removed. Raises
        ConfigurationError for invalid values. `report` gets one line when a notification cannot be
        delivered, and no more of them until that changes."""
        target = environment.pop("NOTIFY_SOCKET", None)
        microseconds = environment.pop("WATCHDOG_USEC", None)
        pid = environment.pop("WATCHDOG_PID", None)
        stored_max = environment.pop("FDSTORE", "0")
        if not target:
            return cls()
        watchdog_seconds = None
        if microseconds is not None and pid in (None, str(os.getpid())):
            watchdog_seconds = _seconds(microseconds)
        if not (stored_max.isascii() and stored_max.isdecimal()):
            raise ConfigurationError(f"FDSTORE={ascii(stored_max)[1:61]} is no number")
        return cls(_parse(target), watchdog_seconds, report, int(stored_max[:10]))

    @property
    def has_manager(self) -> bool:
        return self._address is not None

    def ready(self, status: str) -> None:
        """The bus serves, for the first time or with a new configuration."""
        self._send("READY=1", f"MAINPID={os.getpid()}", _status(status))

    def status(self, status: str) -> None:
        """A line for `systemctl status`."""
        self._send(_status(status))

    def reloading(self, status: str) -> None:
        """The bus reads its configuration again; `ready` ends that, also when it failed."""
        self._send(
            "RELOADING=1",
            f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}",
            _status(status),
        )

    def hand_over(self, pid: int) -> None:
        """That process is the main one of the service from now on, and notifies the manager."""
        self._send(f"MAINPID={pid}")
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(_LAST_SECONDS_MAX)
        self._is_over = True

    def stopping(self, status: str) -> None:
        """The bus has begun to stop."""
        self._send("STOPPING=1", _status(status))

    def alive(self) -> None:
        """The sign of life for the watchdog, which is not repeated if the manager is busy."""
        self._send("WATCHDOG=1", is_kept=False)

    def store(self, name: str, fd: int) -> bool:
        """Have the manager keep this descriptor until it hangs up or is removed; False if it does
        not get it now, because it is busy."""
        assert self.sock is not None
        data = f"FDSTORE=1\nFDNAME={name}".encode()
        descriptors = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            self.sock.sendmsg([data], descriptors, socket.MSG_DONTWAIT, self._address)
        except OSError:
            return False
        return True

    def remove_stored(self, name: str) -> None:
        """Have the manager close the descriptors with this name."""
        self._send("FDSTOREREMOVE=1", f"FDNAME={name}")

    def _send(self, *lines: str, is_kept: bool = True) -> None:
        if self._address is None or self._is_over:
            return
        data = "\n".join(lines).encode(errors="replace")
        if self._thread is None:
            try:
                self._try_to_send(data, socket.MSG_DONTWAIT)
            except BlockingIOError as error:
                if is_kept and self._start_thread():
                    self._waiting.put(data)
                else:
                    self._note_failure(data, error)
        elif is_kept or self._waiting.empty():
            self._waiting.put(data)

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._send_waiting, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are as many threads as there may be
            return False
        self._thread = thread
        return True

    def _send_waiting(self) -> None:
        """In a thread, which waits for the manager."""
        while (data := self._waiting.get()) is not None:
            self._try_to_send(data, 0)

    def _try_to_send(self, data: bytes, flags: int) -> None:
        """Raises BlockingIOError."""
        assert self.sock is not None
        assert self._address is not None
        try:
            self.sock.sendto(data, flags, self._address)
        except BlockingIOError:
            raise
        except OSError as error:
            self._note_failure(data, error)
        else:
            self._reported = None

    def _note_failure(self, data: bytes, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self._reported:
            what = data.partition(b"\n")[0].decode()
            self._report(f"cannot tell the service manager {what}: {reason}")
        self._reported = reason


def _status(text: str) -> str:
    """One line, without control characters."""
    return "STATUS=" + "".join(c if c.isprintable() else " " for c in text)


def _parse(target: str) -> bytes:
    name = os.fsencode(target)
    if name[:1] not in (b"/", b"@"):
        raise AddressError(f"NOTIFY_SOCKET={ascii(target)[1:-1]}: neither a path nor @NAME")
    if len(name) > SUN_PATH_BYTES:
        raise AddressError(f"NOTIFY_SOCKET has {len(name)} bytes, {SUN_PATH_BYTES} are the most")
    return b"\0" + name[1:] if name[:1] == b"@" else name


def _seconds(microseconds: str) -> float:
    if not (microseconds.isascii() and microseconds.isdecimal() and int(microseconds[:20])):
        raise ConfigurationError(f"WATCHDOG_USEC={ascii(microseconds)[1:61]} is no time")
    return int(microseconds[:20]) / 1e6

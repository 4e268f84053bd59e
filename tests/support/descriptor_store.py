"""A service manager with a descriptor store: it starts a bus, and starts it again with what was
stored, as systemd does."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sbus.unix.fd_passing import may_carry_descriptors, refuse_descriptors
from tests.support.bus import SBUSD, START_SECONDS_MAX, Bus, bus_of, sbusd_environment
from tests.support.service_manager import MESSAGE_SECONDS_MAX, ServiceManager

STORED_MAX = 1_000
START_WITH_DESCRIPTORS = """
import fcntl, os, sys
count = int(sys.argv[1])
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 1000) for fd in sys.argv[2 : 2 + count]]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2 + count], sys.argv[2 + count :])
"""


def kernel_refuses_descriptors() -> bool:
    """Whether packets can be without descriptors, and so connections be stored."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        refuse_descriptors(ours)
        return not may_carry_descriptors(ours)


needs_refusal = pytest.mark.skipif(
    not kernel_refuses_descriptors(), reason="needs Linux 6.16 to refuse descriptors"
)


class StoringManager(ServiceManager):
    """Keeps the descriptors of one service."""

    def __init__(self, directory: Path, stored_max: int = STORED_MAX) -> None:
        super().__init__(directory)
        self.directory = directory
        self.stored_max = stored_max
        self.stored: dict[str, list[int]] = {}
        self._bus_address = str(directory / "bus.socket")

    def next(self, timeout_s: float = MESSAGE_SECONDS_MAX) -> dict[str, str]:
        """As of any manager; what is to be stored is, and what has hung up is closed."""
        if not select.select([self.sock], [], [], timeout_s)[0]:
            return {}
        data, fds, _, _ = socket.recv_fds(self.sock, 10_000, 4)
        message = dict(line.split("=", 1) for line in data.decode().split("\n"))
        if "FDSTORE" in message:
            self._store(message["FDNAME"], fds)
        elif "FDSTOREREMOVE" in message:
            for fd in self.stored.pop(message["FDNAME"], []):
                os.close(fd)
        return message

    def _store(self, name: str, fds: Sequence[int]) -> None:
        """What is stored already is not stored again, as after an upgrade."""
        stored = self.stored.setdefault(name, [])
        for fd in fds:
            if any(os.path.sameopenfile(fd, other) for other in stored):
                os.close(fd)
            else:
                stored.append(fd)

    def clients_stored(self) -> int:
        return sum(not name.startswith("@m") for name in self.stored)

    def wait_until_stored(self, clients: int) -> None:
        while self.clients_stored() < clients or len(self.stored) <= clients:
            assert self.next(), f"only {sorted(self.stored)} are stored"

    def drop_ended(self) -> None:
        """Close the connections that have ended, as systemd does at once."""
        for name, fds in list(self.stored.items()):
            for fd in tuple(fds):
                poll = select.poll()
                poll.register(fd, 0)
                if any(events & select.POLLHUP for _, events in poll.poll(0)):
                    os.close(fd)
                    fds.remove(fd)
            if not fds:
                del self.stored[name]

    @contextmanager
    def bus(self, *options: str, workers: int = 2) -> Iterator[Bus]:
        """Start the service with what is stored. Its address is always the same."""
        with self._service(options, workers) as (arguments, fds):
            address = self._bus_address
            with bus_of(
                self.directory, *arguments, address=address, command=None, pass_fds=fds
            ) as bus:
                yield bus

    def run_to_end(self, *options: str, command: Sequence[str] = SBUSD) -> int:
        """Start the service, which ends by itself, and return its exit status."""
        with self._service(options, workers=2) as (arguments, fds):
            start = (sys.executable, "-c", START_WITH_DESCRIPTORS, str(len(fds)), *map(str, fds))
            done = subprocess.run(
                [*start, *command, *arguments],
                stdin=subprocess.DEVNULL,
                env=sbusd_environment(),
                pass_fds=fds,
                timeout=START_SECONDS_MAX,
                check=False,
            )
        return done.returncode

    @contextmanager
    def _service(
        self, options: Sequence[str], workers: int
    ) -> Iterator[tuple[Sequence[str], list[int]]]:
        """The arguments of the service and the descriptors that are passed to it; in the block, the
        environment is the service's."""
        self.drop_ended()
        pairs = [(name, fd) for name, fds in self.stored.items() for fd in fds]
        fds = [fd for _, fd in pairs]
        serving = ("--workers", str(workers), "--placement", "spread")
        arguments = ("-f", "-r", "-a", self._bus_address, *serving, *options)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.variables(pairs).items():
                patch.setenv(name, value)
            yield arguments, fds

    def variables(self, pairs: Sequence[tuple[str, int]]) -> dict[str, str]:
        """The environment of a service that gets these descriptors with their names."""
        return {
            "NOTIFY_SOCKET": self.address,
            "FDSTORE": str(self.stored_max),
            "LISTEN_FDS": str(len(pairs)),
            "LISTEN_FDNAMES": ":".join(name for name, _ in pairs),
        }

    def close(self) -> None:
        self.sock.close()
        for fds in self.stored.values():
            for fd in fds:
                with suppress(OSError):
                    os.close(fd)


@contextmanager
def storing_manager(directory: Path, stored_max: int = STORED_MAX) -> Iterator[StoringManager]:
    manager = StoringManager(directory, stored_max)
    try:
        yield manager
    finally:
        manager.close()

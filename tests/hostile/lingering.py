"""Sockets that keep the process waiting that closes them last, and users who send those away."""

import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sbus.bench.attacks.interrupted_waits import interrupt_waits
from sbus.bench.attacks.programs import lingering_pair
from sbus.unix.fd_passing import send_borrowing_fds
from tests.support.bus import Bus
from tests.support.processes import serving_pids
from tests.support.raw_client import RawClient
from tests.support.users import become, effective_user

_ATTACK_SECONDS_MAX = 300.0
_SEND_SECONDS_MAX = 2.0
SERVED_SECONDS_MAX = 60.0
"""Generous: the machine may be busy. A wait for a lingering socket lasts an hour."""

ATTACKERS = (61_001, 61_002, 61_003)
VICTIM = 61_100


class Attacker:
    """What the process of an attacker does its attack with."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._kept: list[socket.socket] = []
        """Sockets that it must not close: that would wait, or end the waiting of others."""
        self.taken = 0
        """Packets with descriptors that the kernel has taken."""

    def connect(self) -> RawClient:
        return RawClient(self._address, timeout_s=_SEND_SECONDS_MAX)

    def send(self, client: RawClient, packet: bytes, sockets: int = 1) -> None:
        """Send a packet with the only descriptors of TCP sockets that linger for an hour. Raises
        OSError when the connection has ended."""
        pairs = [lingering_pair() for _ in range(sockets)]
        lingering = [sock for sock, _ in pairs]
        self._kept += [peer for _, peer in pairs]
        try:
            send_borrowing_fds(client.sock, packet, [sock.fileno() for sock in lingering])
        except OSError as error:
            self._kept += lingering
            if not isinstance(error, PermissionError):
                raise
            return
        self.taken += 1
        for sock in lingering:
            with interrupt_waits():  # the packet may be done already
                sock.close()


Attack = Callable[[Attacker], None]


class AttackingProcess:
    """A process of another user that attacks. When it is done it stays, so that its sockets go on
    lingering."""

    def __init__(self, uid: int, address: str, attack: Attack) -> None:
        self._report, report = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                become(uid, uid)()
                attacker = Attacker(address)
                attack(attacker)
                os.write(report, b"%d" % attacker.taken)
                signal.pause()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(report)

    def is_done(self) -> bool:
        return bool(select.select([self._report], [], [], 0)[0])

    def packets_taken(self) -> int:
        """How many packets with descriptors the bus was sent."""
        return int(os.read(self._report, 20))

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._report)


@contextmanager
def attackers(address: str, attack: Attack) -> Iterator[list[AttackingProcess]]:
    """Several users attack during the block."""
    processes = [AttackingProcess(uid, address, attack) for uid in ATTACKERS]
    try:
        yield processes
    finally:
        for process in processes:
            process.end()


def packets_taken_during(bus: Bus, attack: Attack) -> int:
    """How many packets with descriptors the bus was sent by several users. Another user is served
    meanwhile, and no process of the bus ends."""
    before = serving_pids(bus)
    with attackers(bus.address, attack) as processes, effective_user(VICTIM), bus.connect() as old:
        deadline = time.monotonic() + _ATTACK_SECONDS_MAX
        while not all(process.is_done() for process in processes):
            assert time.monotonic() < deadline, "the attack takes too long"
            serve(bus, old)
        for _ in range(20):
            serve(bus, old)
        taken = sum(process.packets_taken() for process in processes)
    assert serving_pids(bus) == before
    return taken


def serve(bus: Bus, old: RawClient) -> None:
    """A client of before and a new one are served without long waits."""
    began_at = time.monotonic()
    old.whoami()
    with bus.connect() as new:
        new.sub(b"k")
        new.whoami()
        old.pub(b"k", b"1")
        assert new.receive() == b"MSG k\x001"
    seconds = time.monotonic() - began_at
    assert seconds < SERVED_SECONDS_MAX, f"another user waited for {seconds:.2f} s"

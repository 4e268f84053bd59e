"""Clients that do what their kinds do, at random, and write a log of it.

Every message has its own packet: its payload begins with the connection and a number.
"""

import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tests.campaign.plan import Plan
from tests.history.log import CLOSED, ENDED, OPENED, RECEIVED, SENT, Log
from tests.support.raw_client import PACKET_BYTES_MAX, RawClient
from tests.support.users import effective_user

_OWN_UID, _OWN_GID = os.geteuid(), os.getegid()
"""Asked for once: threads of a run have other ones for a moment."""
UIDS = (0, 61_001, 61_002) if _OWN_UID == 0 else (_OWN_UID,)
KINDS: dict[str, tuple[bytes, ...]] = {
    "reader": (),
    "requester": (),
    "secretive": (),
    "member": (),
    "watcher": (),
    "churner": (),
    "hostile": (),
    "slow": (),
    "sleeper": (),
    "observer": (b"sender/on",),
    "stack": (b"order/stack",),
    "random": (b"order/random",),
    "latest": (b"order/latest",),
    "old": (b"age/300",),
    "discarder": (b"blocking/soft/discard",),
    "impatient": (b"blocking/soft/error",),
    "blocker": (b"blocking/soft/block",),
}
"""With what each of them chooses."""
identity = threading.Lock()
"""To change the effective user of this process, or to rely on it."""
MANY = ("reader", "requester", "requester", "secretive", "member", "slow", "sleeper")
SLOW = {"slow", "stack", "random", "latest", "old", "discarder", "impatient", "blocker"}
"""They read some packets now and then."""
IN_DOT = ("reader", "reader", "slow", "churner", "sleeper", "hostile")
TOPICS = 24
_SIZES = (0,) * 20 + (20,) * 8 + (200,) * 8 + (2_000,) * 3 + (20_000,)
_SLOW_PACKETS = 20
_BURST_MESSAGES = 64
_BAD = (
    b"",
    b"HELLO",
    b"MSG no-nul",
    b"SUB " + b"x" * 5_000,
    b"MSG a/!/b\0",
    b"SUB !/x",
    b"MSG !\0",
)
_READ_AT_ONCE = 200
_ASK_AGAIN_SECONDS = 1.0


class Client:
    """One client, whose connection is another one after it has ended."""

    def __init__(self, kind: str, number: int, plan: Plan, log: Log, address: str) -> None:
        self.kind = kind
        self._plan = plan
        self._chance = random.Random(plan.seed * 1_000 + number)
        self._uid = UIDS[number % len(UIDS)]
        self._log = log
        self._address = address
        self._separator = b"." if plan.dialect == "dot" else b"/"
        self.raw: RawClient | None = None
        self._open_receipts: set[bytes] = set()
        """By token."""
        self._packets_lost = 0
        self.unanswered: set[bytes] = set()
        """Packets whose arrival, or whose reply's, is awaited."""
        self._numbers = 0
        self.connection = 0
        self.is_new = True
        """Whether its first reply has not come, before which nobody is slow."""
        self._is_named = False

    def connect(self) -> bool:
        """Connect and subscribe; False if the bus takes no connection now."""
        if not identity.acquire(blocking=False):
            return False
        try:
            with effective_user(self._uid):
                self.raw = RawClient(self._address)
        except OSError:
            return False
        finally:
            identity.release()
        self.raw.sock.setblocking(False)
        self.connection = self._log.connection()
        self._open_receipts, self.unanswered = set(), set()
        self._packets_lost, self._is_named = 0, False
        ids = b"%d %d %d" % (self._gid, self._uid, os.getpid())
        self.is_new = True
        self._log.write(self.connection, OPENED, self._plan.dialect.encode() + b" " + ids)
        if self._plan.dialect == "slash":
            self._send(b"CMSG !/notices/on")
            if self._chance.random() < 0.5:
                self._send(b"CMSG echo/off")
            for choice in KINDS[self.kind]:
                self._send(b"CMSG " + choice)
        for pattern in self._patterns():
            self._send(b"SUB " + pattern)
        self.sync()
        return True

    def _patterns(self) -> list[bytes]:
        separator = self._separator
        if self.kind == "observer":
            return [b""]
        if self.kind == "watcher":
            return [b"!/presence/*/*", b"will/*", b"t/1*"]
        patterns = [
            b"t%b%d" % (separator, self._chance.randrange(TOPICS))
            for _ in range(self._chance.choice((1, 2, 4, 8)))
        ]
        if self._chance.random() < 0.3:
            patterns.append(b"t%b%d*" % (separator, self._chance.randrange(1, 3)))
        if self._plan.dialect == "dot":
            return [*patterns, b"self.%d" % self.connection]
        if self.kind == "secretive":
            own = [b"%d" % it for it in (self._gid, self._uid, os.getpid())]
            for _ in range(3):
                ids = [self._chance.choice((one, b"")) for one in own]
                patterns.append(b"!/cred/%b/%b/%b/" % (*ids,))
        return patterns

    @property
    def _gid(self) -> int:
        return self._uid if self._uid != _OWN_UID else _OWN_GID

    # -- sending -------------------------------------------------------------------------------
    def _send(self, packet: bytes) -> bool:
        """Whether the socket took the packet."""
        assert self.raw is not None
        try:
            self.raw.sock.send(packet)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        self._log.write(self.connection, SENT, packet)
        return True

    def _payload(self) -> bytes:
        self._numbers += 1
        filler = bytes([97 + self._numbers % 26]) * self._chance.choice(_SIZES)
        return b"%d %d %b" % (self.connection, self._numbers, filler)

    def sync(self) -> bool:
        """Ask for a reply; in the dialect without requests, send a message to oneself."""
        self._numbers += 1
        if self._plan.dialect == "dot":
            packet = b"MSG self.%d\0%d" % (self.connection, self._numbers)
        else:
            packet = b"CMSG !/sync\0%d" % self._numbers
        if self._send(packet):
            self.unanswered.add(packet)
            return True
        return False

    def act(self) -> None:
        """Do something."""
        if self.raw is None:
            if self._chance.random() < 0.2:
                self.connect()
            return
        weights, actions = zip(*self._actions(), strict=True)
        (action,) = self._chance.choices(actions, weights)
        action()

    def _actions(self) -> list[tuple[float, Callable[[], object]]]:
        actions: list[tuple[float, Callable[[], object]]] = [
            (20, self._publish),
            (0.3, self._burst),
            (0.5, self.sync),
            (0.3, self._change_subscriptions),
        ]
        if self._plan.dialect == "slash":
            actions.append((20 if self.kind == "requester" else 1, self._request))
            actions.append((10 if self.kind == "secretive" else 0.5, self._publish_secret))
        if self.kind == "member":
            actions.append((5, self._change_name))
        if self.kind in ("churner", "member"):
            actions.append((1, self.close))
        if self.kind == "hostile":
            actions.append((2, self._misbehave))
        return actions

    def _topic(self) -> bytes:
        return b"t%b%d" % (self._separator, self._chance.randrange(TOPICS))

    def _publish(self) -> None:
        self._send(b"MSG %b\0%b" % (self._topic(), self._payload()))

    def _burst(self) -> None:
        """As many messages as the bus reads at once, so that a death finds some on their way."""
        for _ in range(_BURST_MESSAGES):
            self._publish()

    def _publish_secret(self) -> None:
        """Who names this process, which changes its user, names the user and the group as well."""
        uid = self._chance.choice(UIDS)
        gid = _OWN_GID if uid == _OWN_UID else uid
        ids = [self._chance.choice((b"%d" % it, b"")) for it in (gid, uid)] + [b""]
        if self._chance.random() < 0.3:
            ids = [b"%d" % it for it in (gid, uid, os.getpid())]
        self._send(b"MSG !/cred/%b/%b/%b/s\0%b" % (*ids, self._payload()))

    def _request(self) -> None:
        payload = self._payload()
        token = payload.split(b" ")[1]
        if self._send(b"CMSG !/publish\0%b\0%b\0%b" % (token, self._topic(), payload)):
            self._open_receipts.add(token)

    def _change_subscriptions(self) -> None:
        pattern = self._topic()
        self._send((b"SUB ", b"UNSUB ")[self._chance.random() < 0.5] + pattern)
        self.sync()

    def _change_name(self) -> None:
        name = b"n%d" % self._chance.randrange(8)
        if self._chance.random() < 0.4:
            self._send(b"CMSG !/leave")
            return
        will = b""
        if self._chance.random() < 0.5 and not self._is_named:
            self._is_named = True
            will = b"\0will/%b\0%b" % (name, self._payload()[:60])
        self._send(b"CMSG !/join\0%b%b" % (name, will))

    def _misbehave(self) -> None:
        assert self.raw is not None
        if self._chance.random() < 0.1:
            self._log.write(self.connection, CLOSED)
            self.raw.sock.shutdown(self._chance.choice((socket.SHUT_WR, socket.SHUT_RD)))
            self.forget()
        else:
            self._send(self._chance.choice(_BAD))

    # -- receiving -----------------------------------------------------------------------------
    def read(self, packets_max: int = _READ_AT_ONCE) -> int:
        """Read what is here; returns how many packets that were."""
        assert self.raw is not None
        for count in range(packets_max):
            try:
                packet = self.raw.sock.recv(PACKET_BYTES_MAX + 1)
            except BlockingIOError:
                return count
            except ConnectionResetError:
                packet = b""
            if not packet:
                self._log.write(self.connection, ENDED)
                self.forget()
                return count
            self._log.write(self.connection, RECEIVED, packet)
            self._note(packet)
        return packets_max

    def _note(self, packet: bytes) -> None:
        if packet in self.unanswered:
            if self._plan.dialect == "dot":
                self.unanswered.clear()  # barriers that a full backlog has cost will not come
            self.unanswered.discard(packet)
            self.is_new = False
        if packet.startswith(b"CMSG !/receipt\0"):
            self._open_receipts.discard(packet.split(b"\0")[1])
        elif packet.startswith(b"CMSG !/error\0packets-lost "):
            self._packets_lost += int(packet.split()[2])
            self.unanswered.clear()

    @property
    def awaits_receipts(self) -> bool:
        """Whether receipts are missing that were not lost as packets."""
        return len(self._open_receipts) > self._packets_lost

    def read_slowly(self) -> None:
        if self.raw is not None:
            self.read(_SLOW_PACKETS)

    def close(self) -> None:
        if self.raw is not None:
            self._log.write(self.connection, CLOSED)
            self.forget()

    def forget(self) -> None:
        if self.raw is not None:
            self.raw.close()
            self.raw = None


class Load:
    """All clients of a run, in one thread."""

    def __init__(self, plan: Plan, log: Log, address: str) -> None:
        self._plan = plan
        self._chance = random.Random(~plan.seed)
        kinds = [*KINDS] if plan.dialect == "slash" else [*IN_DOT]
        more = MANY if plan.dialect == "slash" else IN_DOT[:1]
        while len(kinds) < plan.clients:
            kinds.append(self._chance.choice(more))
        self.clients = [
            Client(kind, number, plan, log, address)
            for number, kind in enumerate(kinds[: max(plan.clients, len(KINDS))])
        ]

    def run(self, is_over: Callable[[], bool]) -> None:
        """Act and read until `is_over`."""
        pause = 1 / self._plan.actions_per_second
        act_at = slow_at = time.monotonic()
        while not is_over():
            now = time.monotonic()
            if now - act_at > 1:
                act_at = now
            while act_at <= now:
                act_at += pause
                self._chance.choice(self.clients).act()
            if slow_at <= now:
                slow_at = now + 0.25
                for client in self.clients:
                    if client.kind in SLOW:
                        client.read_slowly()
            self._read(SLOW | {"sleeper"}, min(0.05, act_at - now))

    def _read(self, except_for: set[str], seconds_max: float) -> None:
        readers = {
            client.raw.fileno(): client
            for client in self.clients
            if client.raw is not None and (client.is_new or client.kind not in except_for)
        }
        poll = select.poll()
        for fd in readers:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(max(0.0, seconds_max) * 1_000):
            readers[fd].read()

    def finish(self, seconds_max: float) -> bool:
        """Have everybody read everything, twice, as what was published before the first replies
        arrives before the second; then wait for receipts. False if a reply is missing. In the
        dialect without requests a full backlog costs replies, so those are asked for again."""
        for _ in range(2):
            for client in self.clients:
                client.unanswered.clear()
            unasked = {client for client in self.clients if client.raw is not None}
            ends_at = time.monotonic() + seconds_max
            again_at = time.monotonic() + _ASK_AGAIN_SECONDS
            while unasked or any(client.raw and client.unanswered for client in self.clients):
                if time.monotonic() > ends_at:
                    return False
                if self._plan.dialect == "dot" and time.monotonic() > again_at:
                    again_at = time.monotonic() + _ASK_AGAIN_SECONDS
                    unasked |= {client for client in self.clients if client.unanswered}
                unasked = {client for client in unasked if client.raw and not client.sync()}
                self._read(set(), 0.05)
        ends_at = time.monotonic() + seconds_max
        while any(client.raw and client.awaits_receipts for client in self.clients):
            if time.monotonic() > ends_at:
                break  # the check of receipts says which are missing
            self._read(set(), 0.05)
        return True

    def close(self) -> None:
        for client in self.clients:
            with suppress(OSError):
                client.close()

"""The acceptor: accepting connections, and who may come in.

Only named errors are survived. Those that mean "this one connection failed" are skipped; those that
mean "out of descriptors or memory" make the acceptor wait until a client leaves or a moment passes,
while whoever knocks stands in the kernel's listen queue. Anything else is a bug and escapes.

Whoever is none of the users that the bus is for is turned away in silence. Whom the access rules do
not let connect is told so: that is one packet, which the socket takes or not.

This module does not know what happens to a client that was let in.
"""

import os
import resource
import socket
from collections import Counter
from contextlib import suppress

import msgspec
import trio

from sbus.broker.config.access_policy import PeerRules
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter, process_of
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.protocol.controls import error_notice
from sbus.protocol.events import AcceptingPaused, ConnectionRefused
from sbus.protocol.keys import DIALECTS
from sbus.shared.accounts import CONNECTIONS, Account
from sbus.unix.closing import discard_unread, shut_down
from sbus.unix.credentials import Credentials, peer_credentials, peer_groups
from sbus.unix.errno_sets import ACCEPT_FAILED, OUT_OF_RESOURCES
from sbus.unix.open_files import administrators_max, watched_processes_max
from sbus.unix.peer_process import program_name

_BACK_OFF_SECONDS = 0.5
_DESCRIPTORS_PER_WORKER = 3
"""A link, the end of it that is on its way to the worker, and a pidfd."""
_DESCRIPTORS_SPARE = 12
"""The event loop, and whatever the standard library opens for a moment."""


class AcceptedClient(msgspec.Struct, frozen=True):
    """A client that may come in. `sock` is non-blocking and belongs to whoever has this."""

    sock: socket.socket
    credentials: Credentials
    account: Account


class Acceptor:
    """Lets clients in from a listening socket, which it borrows."""

    def __init__(
        self,
        listener: socket.socket,
        settings: BusSettings,
        user_limits: EffectiveUserLimits,
        rate_limiter: LogRateLimiter,
        events: EventEmitter,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._user_limits = user_limits
        self._rate_limiter = rate_limiter
        self._events = events
        self.apply_settings(settings, PeerRules(settings.rules))
        self.counts: Counter[str] = Counter()
        """Connections that were refused, by code."""
        self._room = trio.Event()
        self._clients = 0
        self._clients_max = _clients_max(settings.workers)

    def apply_settings(self, settings: BusSettings, rules: PeerRules) -> None:
        """Have other settings from now on; `rules` are theirs."""
        self._settings = settings
        self._rules = rules

    def concerning(self, sock: socket.socket, own: Credentials) -> int:
        """The access rules in force that concern a peer."""
        return concerning(self._rules, sock, own)

    async def next_client(self) -> AcceptedClient:
        """The next client that may come in; the caller owns its socket."""
        while True:
            if self._clients >= self._clients_max:
                await self._back_off(
                    f"{self._clients} clients are as many as the limit of open files allows"
                )
                continue
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._listener)
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    await self._back_off(os.strerror(error.errno or 0))
                elif error.errno not in ACCEPT_FAILED:
                    raise
            else:
                admitted = self._admit(sock)
                if admitted is not None:
                    self._clients += 1
                    admitted.account.count_connection(1)
                    return admitted
                await trio.lowlevel.checkpoint()

    async def _back_off(self, why: str) -> None:
        self._rate_limiter.log("accept", 0, lambda: AcceptingPaused(why=why))
        self._room = trio.Event()
        with trio.move_on_after(_BACK_OFF_SECONDS):
            await self._room.wait()

    def client_left(self, account: Account) -> None:
        """A client has left, and with it a descriptor."""
        self._clients -= 1
        account.count_connection(-1)
        self._room.set()

    def _admit(self, sock: socket.socket) -> AcceptedClient | None:
        """What is known of a client that may come in; the socket of any other is closed."""
        credentials = peer_credentials(sock)
        if not self._may_enter(sock, credentials):
            self._complain("not-admitted", credentials, "none of the users that the bus is for")
            sock.close()
            return None
        sock.setblocking(False)
        denied_by = self._rules.connect_denied_by(self.concerning(sock, credentials))
        if denied_by is not None:
            self._complain("not-allowed", credentials, f"rules[{denied_by}]")
            self._turn_away(sock, "not-allowed", "you may not connect to this bus")
            return None
        account = self._account(sock, credentials)
        if account is None:
            return None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes(self._settings))
        return AcceptedClient(sock, credentials, account)

    def _account(self, sock: socket.socket, own: Credentials) -> Account | None:
        """The user's account, if it has room for one more connection; else the socket is closed."""
        account = self._user_limits.account(own.uid)
        if account is None:
            self._complain("too-many-users", own, "the bus keeps no more accounts (users_max)")
            self._turn_away(sock, "too-many-users", "the bus keeps accounts for no more users")
            return None
        if account.has_room_for_connection():
            return account
        why = "your user has as many as it may"
        self.counts["too-many-connections"] += 1
        if self._events.is_watched:
            self._events.show(_refused(own, "too-many-connections", why))
        self._rate_limiter.log_limit_reached(CONNECTIONS, account, own)
        self._turn_away(sock, "too-many-connections", why)
        return None

    def _complain(self, code: str, who: Credentials, why: str) -> None:
        self.counts[code] += 1
        self._rate_limiter.log(code, who.uid, lambda: _refused(who, code, why))

    def _turn_away(self, sock: socket.socket, code: str, text: str) -> None:
        """Close a client's socket so that it can read why, in a dialect that has words for it."""
        discard_unread(sock, self._settings.limits.drain_packets_max)
        if DIALECTS[self._settings.dialect].has_control_messages:
            # It has gone, or the packets that it left unread are in the way: then it need not know.
            with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                sock.send(error_notice(code, text))
        shut_down(sock)

    def _may_enter(self, sock: socket.socket, credentials: Credentials) -> bool:
        uids = self._settings.admit_uids
        if uids is None or credentials.uid in uids:
            return True
        gids = self._settings.admit_gids
        return bool(gids) and (credentials.gid in gids or not gids.isdisjoint(peer_groups(sock)))


def concerning(rules: PeerRules, sock: socket.socket, own: Credentials) -> int:
    """The access rules that concern a peer; the kernel is asked for its groups if need be."""
    groups = peer_groups(sock) | {own.gid} if rules.depend_on_groups else frozenset({own.gid})
    return rules.rules_for(own.uid, groups)


def _refused(who: Credentials, code: str, why: str) -> ConnectionRefused:
    process = process_of(who, program_name(who.pid))
    return ConnectionRefused(who=process, code=code, why=why)


def _clients_max(workers: int) -> int:
    """Clients that leave enough descriptors to replace every worker, and for administrators.

    One worker may have all of them, and watches processes of theirs besides.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    reserve = _DESCRIPTORS_PER_WORKER * workers + _DESCRIPTORS_SPARE
    reserve += watched_processes_max() + 2 * administrators_max()
    return max(1, limit - in_use - reserve)


_PACKET_OVERHEAD_BYTES = 32
"""What the kernel takes off SO_SNDBUF before it compares a packet with it."""


def send_buffer_bytes(settings: BusSettings) -> int:
    """SO_SNDBUF to ask for, so that twice of it, which the kernel sets, takes any packet."""
    limits = settings.limits
    half = (limits.packet_bytes_max + _PACKET_OVERHEAD_BYTES + 1) // 2
    return max(limits.socket_buffer_bytes, half)


def packet_bytes_carried(settings: BusSettings) -> int:
    """The largest packet that this kernel takes from a socket of this bus."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes(settings))
        effective = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return effective - _PACKET_OVERHEAD_BYTES

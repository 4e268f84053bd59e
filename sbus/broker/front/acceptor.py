"""The acceptor: accepts connections, and decides which clients may come in.

Only named errors are survived: one connection that failed is skipped; without descriptors or memory
the acceptor waits until a client leaves or a moment passes, while new clients wait in the kernel's
listen queue.

A client of a user that the bus is not for is disconnected without a word. One that the access rules
or a quota keep out is told so in one packet, if the socket takes it.
"""

import os
import resource
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import trio

from sbus.broker.config.access_policy import PeerRules, RuleSet
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter, describe_process
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.protocol.controls import error_notice
from sbus.protocol.events import AcceptingPaused, ConnectionRefused
from sbus.protocol.keys import DIALECTS
from sbus.shared.accounts import CONNECTIONS, Account
from sbus.unix.closing import close_promptly, discard_unread, shut_down
from sbus.unix.credentials import Credentials, peer_credentials, peer_groups
from sbus.unix.errno_sets import ACCEPT_FAILED, OUT_OF_RESOURCES
from sbus.unix.open_files import administrators_max, watched_processes_max
from sbus.unix.peer_process import program_name
from sbus.unix.send_buffer import small_buffer_bytes

_BACK_OFF_SECONDS = 0.5
_DESCRIPTORS_PER_WORKER = 3
"""A link, the end of it that is on its way to the worker, and a pidfd."""
_DESCRIPTORS_SPARE = 8
"""For what the standard library opens for a moment. A client on its way to another worker takes one
more; where there is none, it stays."""


class AcceptedClient(msgspec.Struct, frozen=True):
    """A client that may come in. `sock` is non-blocking and belongs to the receiver."""

    sock: socket.socket
    credentials: Credentials
    account: Account


async def accept_connection(
    listener: socket.socket, back_off: Callable[[str], Awaitable[None]]
) -> socket.socket:
    """The next connection to a non-blocking listening socket. `back_off` is awaited with the reason
    when the process or the host is out of resources."""
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            await trio.lowlevel.wait_readable(listener)
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                await back_off(os.strerror(error.errno))
            elif error.errno not in ACCEPT_FAILED:
                raise


class Acceptor:
    """Accepts clients from a listening socket, which it borrows."""

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
        self.apply_settings(settings)
        self.refused: Counter[str] = Counter()
        """Connections that were refused, by code."""
        self._room = trio.Event()
        self._clients = 0
        self._clients_max = _clients_max(settings.workers)

    def apply_settings(self, settings: BusSettings) -> None:
        self._settings = settings
        self._rules = PeerRules(settings.rules)
        self._rate_limiter.set_interval(settings.limits.log_interval_seconds)

    def rules_for(self, sock: socket.socket, own: Credentials) -> RuleSet:
        """The access rules in force that concern a peer."""
        return rules_for_peer(self._rules, sock, own)

    async def next_client(self) -> AcceptedClient:
        """The next client that may come in; the caller owns its socket."""
        while True:
            while self._clients >= self._clients_max:
                await self._back_off(
                    f"{self._clients} clients are as many as the limit of open files allows"
                )
            client = self._check(await accept_connection(self._listener, self._back_off))
            if client is not None:
                self._clients += 1
                client.account.count_connection(1)
                return client
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

    def _check(self, sock: socket.socket) -> AcceptedClient | None:
        """The client, if it may come in; any other is rejected and its socket closed."""
        own = peer_credentials(sock)
        if not self._is_admitted(sock, own):
            self._log_refusal("not-admitted", own, "none of the users that the bus is for")
            close_promptly(sock)
            return None
        sock.setblocking(False)
        denied_by = self._rules.connect_denied_by(self.rules_for(sock, own))
        if denied_by is not None:
            self._log_refusal("not-allowed", own, f"rules[{denied_by}]")
            self._reject(sock, "not-allowed", "you may not connect to this bus")
            return None
        account = self._user_limits.open_account(own.uid)
        if account is None:
            self._log_refusal("too-many-users", own, "the bus keeps no more accounts (users_max)")
            self._reject(sock, "too-many-users", "the bus keeps accounts for no more users")
            return None
        if not account.has_room_for_connection():
            why = "your user has as many as it may"
            self.refused["too-many-connections"] += 1
            if self._events.is_watched:
                self._events.show(_refusal(own, "too-many-connections", why))
            self._rate_limiter.log_limit_reached(CONNECTIONS, account, own)
            self._reject(sock, "too-many-connections", why)
            return None
        buffer_bytes = small_buffer_bytes(self._settings.limits)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        return AcceptedClient(sock, own, account)

    def _is_admitted(self, sock: socket.socket, own: Credentials) -> bool:
        uids, gids = self._settings.admit_uids, self._settings.admit_gids
        if uids is None or own.uid in uids:
            return True
        return bool(gids) and (own.gid in gids or not gids.isdisjoint(peer_groups(sock)))

    def _log_refusal(self, code: str, own: Credentials, why: str) -> None:
        self.refused[code] += 1
        self._rate_limiter.log(code, own.uid, lambda: _refusal(own, code, why))

    def _reject(self, sock: socket.socket, code: str, text: str) -> None:
        """Close a client's socket so that it can read why, in a dialect that has words for it."""
        discard_unread(sock, self._settings.limits.drain_packets_max)
        if DIALECTS[self._settings.dialect].has_control_messages:
            # It has left, or the packets that it left unread are in the way: then it is not told.
            with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                sock.send(error_notice(code, text))
        shut_down(sock)


def rules_for_peer(rules: PeerRules, sock: socket.socket, own: Credentials) -> RuleSet:
    """The access rules that concern a peer; the kernel is asked for its groups if need be."""
    groups = peer_groups(sock) | {own.gid} if rules.depend_on_groups else frozenset({own.gid})
    return rules.rules_for(own.uid, groups)


def _refusal(own: Credentials, code: str, why: str) -> ConnectionRefused:
    process = describe_process(own, program_name(own.pid))
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

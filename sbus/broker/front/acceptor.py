"""The acceptor: accepts connections as fast as they come, and queues those that may come in.

The kernel's listen queue is the same for all users, so nothing may wait there: a client waits for
its turn in a queue of its user.

Only named errors are survived: one connection that failed is skipped; without descriptors or memory
the acceptor waits until a client leaves or a moment passes, while new clients wait in the kernel's
listen queue.
"""

import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.closer import Closer
from sbus.broker.front.connection_policy import ConnectionPolicy
from sbus.broker.front.connection_queue import AcceptedClient, ConnectionQueue
from sbus.broker.front.rejector import Refusal, Rejector
from sbus.broker.front.turns import TimedTurns
from sbus.protocol.controls import end_notice
from sbus.protocol.events import AcceptingPaused
from sbus.shared.accounts import CONNECTION_RATE, Account
from sbus.unix.credentials import peer_credentials
from sbus.unix.errno_sets import ACCEPT_FAILED, OUT_OF_RESOURCES
from sbus.unix.fd_passing import refuse_descriptors
from sbus.unix.send_buffer import small_buffer_bytes

_BACK_OFF_SECONDS = 0.5


async def accept_connection(
    listener: socket.socket,
    back_off: Callable[[str], Awaitable[None]],
    on_empty: Callable[[], None] = lambda: None,
) -> socket.socket:
    """The next connection to a non-blocking listening socket. `back_off` is awaited with the reason
    when the process or the host is out of resources; `on_empty` is called when none waits."""
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            on_empty()
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
        policy: ConnectionPolicy,
        rejector: Rejector,
        closer: Closer,
        rate_limiter: LogRateLimiter,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._policy = policy
        self._rejector = rejector
        self._closer = closer
        self._refuses_descriptors = not settings.disconnect_descriptors
        self._descriptors = policy.descriptors
        self._rate_limiter = rate_limiter
        self._queue = ConnectionQueue()
        self._queued = trio.Event()
        self._room = trio.Event()
        self._turns = TimedTurns()
        self._resumed = trio.Event()
        self._resumed.set()
        self._accepting = trio.CancelScope()
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._send_buffer_bytes = small_buffer_bytes(settings.limits)

    def configure_listener(self) -> None:
        """No other bus serves at the listening socket any more: have the kernel refuse descriptors
        on new connections, or not, as this bus is to."""
        refuse_descriptors(self._listener, does_refuse=self._refuses_descriptors)

    async def run(self) -> None:
        """Accept connections until cancelled; then end those that wait for admission."""
        try:
            while True:
                await self._resumed.wait()
                with trio.CancelScope() as self._accepting:
                    await self._accept_all()
        finally:
            with trio.CancelScope(shield=True):
                await self._end_waiting()

    async def _accept_all(self) -> None:
        while True:
            on_empty = self._rejector.note_empty_listen_queue
            sock = await accept_connection(self._listener, self._back_off, on_empty)
            await self._turns.use(partial(self.take_in, sock))

    async def _end_waiting(self) -> None:
        for client in self._queue.take_all():
            self.client_left(client.account)
            uid, notice = client.account.uid, end_notice("stopping")
            await self._turns.use(partial(self._rejector.close, client.sock, uid, notice))

    async def refuse_waiting(self) -> None:
        """End the connections that nobody accepts any more. There are no new ones."""
        with suppress(OSError):  # EAGAIN or EINVAL: there are no more
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                self._closer.keep(sock)
                self._rejector.close(sock, peer_credentials(sock).uid, end_notice("stopping"))
                await trio.lowlevel.checkpoint()

    def take_in(self, sock: socket.socket) -> None:
        """Queue a client that may come in, and reject any other."""
        self._closer.keep(sock)
        own = peer_credentials(sock)
        if self._rejector.reject_silently(sock, own.uid):
            return
        began_ns = time.thread_time_ns()
        sock.setblocking(False)
        decision = self._policy.decide(sock, own)
        if isinstance(decision, Refusal):
            self._rejector.reject(sock, own, decision, began_ns)
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
        self._descriptors.count(decision, 1)
        self._queue.add(AcceptedClient(sock, own, decision))
        self._queued.set()

    async def _back_off(self, why: str) -> None:
        self._rate_limiter.log("accept", 0, lambda: AcceptingPaused(why=why))
        self._room = trio.Event()
        with trio.move_on_after(_BACK_OFF_SECONDS):
            await self._room.wait()

    # -- admission -----------------------------------------------------------------------------
    async def wait_for_client(self) -> None:
        """Wait until `next_client` returns one."""
        await self._resumed.wait()
        while (delay_ns := self._queue.due_ns() - time.monotonic_ns()) > 0:
            first = self._queue.first_held_back()
            if first is not None:
                own = first.credentials
                self._rate_limiter.log_limit_reached(CONNECTION_RATE, first.account, own)
            self._queued = trio.Event()
            with trio.move_on_after(delay_ns / 1e9):
                await self._queued.wait()

    def next_client(self) -> AcceptedClient | None:
        """The client whose turn it is, if any; the caller owns its socket, and calls `client_left`
        when it has left."""
        return self._queue.take(time.monotonic_ns()) if self._resumed.is_set() else None

    def client_left(self, account: Account) -> None:
        """A client has left, and with it a descriptor."""
        self._descriptors.count(account, -1)
        self._room.set()

    def client_came(self, account: Account) -> None:
        """A client came in that another bus had accepted."""
        self._descriptors.count(account, 1)

    # -- another bus takes the place of this one ----------------------------------------------
    def pause(self) -> None:
        """Let nobody come in, and leave new connections in the listen queue."""
        self._resumed = trio.Event()
        self._accepting.cancel()

    def resume(self) -> None:
        """Accept connections again."""
        self._resumed.set()

    def waiting(self) -> list[socket.socket]:
        """The connections that were accepted and wait for admission."""
        return [client.sock for client in self._queue]

    def leave_waiting(self) -> None:
        """Another bus has them."""
        for client in self._queue.take_all():
            client.sock.close()

"""The front's handle on the closer, which closes sockets with unread packets: see `closer_process`.

The closer gets a copy of each connection that may carry descriptors when it is accepted. At the end
of the connection, first the worker and then the front close their copies, and then the closer is
told to close its own. A copy that is on its way to the closer is as good as one that it has: only
the end of the closer drops it.

A closer that does not answer in time is *stuck*. It is killed, which may have no effect, and nobody
waits for that. Another begins with copies of the sockets that the front has. What the same user's
connections leave is closed when the stuck one has ended, so each user has one of those at most.

Where the kernel refuses descriptors there is no closer.
"""

import math
import os
import signal
import socket
from collections import deque
from contextlib import suppress

import msgspec
import trio

from sbus.broker.events.rate_limit import LogRateLimiter
from sbus.broker.front.closer_process import END, REQUEST
from sbus.broker.front.fork_server import ForkServer, WorkerExited, WorkerForked
from sbus.broker.ipc.room import RETRY_SECONDS
from sbus.protocol.events import CloserStuck
from sbus.unix.errno_sets import OUT_OF_RESOURCES, SOCKET_FULL
from sbus.unix.fd_passing import may_carry_descriptors, send_borrowing_fds
from sbus.unix.readiness import is_readable_within

_ANSWER_SECONDS_MAX = 0.5
"""Long beside closing a socket, also on a busy machine; nobody but closing sockets waits for it."""
_RESTART_SECONDS = 0.1
_SETTLE_SECONDS_MAX = 1.5
_UNANSWERED_MAX = 64
"""Requests that the link has room for."""
_NO_USER = -1


class _Request(msgspec.Struct, frozen=True):
    """Keep a socket, or close it on behalf of a user. `sock` is the front's copy, if it has one."""

    number: int
    sock: socket.socket | None
    closes: bool = False
    uid: int = _NO_USER


class Closer:
    """Of one bus; there is a process while it is needed."""

    def __init__(self, fork_server: ForkServer, rate_limiter: LogRateLimiter) -> None:
        self._fork_server = fork_server
        self._rate_limiter = rate_limiter
        self._numbers: dict[socket.socket, int] = {}
        """Of the sockets that the front has, and the closer has or will have."""
        self._last_number = END
        self._link: socket.socket | None = None
        self._process: WorkerForked | None = None
        self._started = trio.Event()
        self._unsent: deque[_Request] = deque()
        self._unanswered: deque[_Request] = deque()
        self._stuck: dict[int, int] = {}
        """The users for whom closers are stuck, by the pids of these."""
        self._parked: dict[int, list[int]] = {}
        """Sockets to be closed when their user has no stuck closer any more."""
        self._is_ending = False
        self._needed = trio.Event()
        self._answered = trio.lowlevel.ParkingLot()
        self._patience = trio.CancelScope()
        self._answer_due_at = math.inf
        """To the first of the unanswered requests."""

    def keep(self, sock: socket.socket) -> None:
        """See to it that closing this new connection, everywhere but in the closer, is short."""
        if may_carry_descriptors(sock):
            self._last_number += 1
            self._numbers[sock] = self._last_number
            self._request(_Request(self._last_number, sock))
            self._needed.set()

    def close(self, sock: socket.socket, uid: int) -> None:
        """Close a connection of this user, or a listening socket. Workers have no copies."""
        number = self._numbers.get(sock)
        if number is None:
            sock.close()
        else:
            self._request(_Request(number, sock, closes=True, uid=uid))

    # -- requests ------------------------------------------------------------------------------
    def _request(self, request: _Request) -> None:
        self._unsent.append(request)
        self._send()

    def _send(self) -> None:
        """Send what waits, as long as the link has room."""
        while self._link is not None and self._unsent and len(self._unanswered) < _UNANSWERED_MAX:
            request = self._unsent.popleft()
            if request.closes:
                self._close_own(request)
                if self._is_ending:
                    continue
                if request.uid in self._stuck.values():
                    self._parked.setdefault(request.uid, []).append(request.number)
                    continue
            try:
                self._send_one(request)
            except BlockingIOError:
                closed = msgspec.structs.replace(request, sock=None)
                self._unsent.appendleft(closed if request.closes else request)
                break
            if not self._unanswered:
                self._expect_answer()
            self._unanswered.append(request)
        self._patience.deadline = self._wait_until()

    def _expect_answer(self) -> None:
        self._answer_due_at = trio.current_time() + _ANSWER_SECONDS_MAX

    @property
    def _is_blocked(self) -> bool:
        """Whether the kernel had no room for the next request."""
        return bool(self._unsent) and len(self._unanswered) < _UNANSWERED_MAX

    def _wait_until(self) -> float:
        """When an answer is late, or the next request is worth another try."""
        answer_due_at = self._answer_due_at if self._unanswered else math.inf
        retry_at = trio.current_time() + RETRY_SECONDS if self._is_blocked else math.inf
        return min(answer_due_at, retry_at)

    def _close_own(self, request: _Request) -> None:
        """Close the front's copy. Another is in the closer, or on its way to it."""
        if request.sock is not None:
            del self._numbers[request.sock]
            request.sock.close()

    def _send_one(self, request: _Request) -> None:
        assert self._link is not None
        fds = [] if request.closes or request.sock is None else [request.sock.fileno()]
        with suppress(BrokenPipeError, ConnectionResetError):  # reading shows that it has ended
            send_borrowing_fds(self._link, REQUEST.pack(request.number), fds)

    # -- processes -----------------------------------------------------------------------------
    def on_event(self, event: WorkerForked | WorkerExited) -> None:
        """The fork server reports about a closer."""
        if isinstance(event, WorkerForked):
            self._process = event
            self._started.set()
        elif not event.pid:  # the fork has failed
            self._started.set()
        elif (uid := self._stuck.pop(event.pid, None)) is not None:
            for number in self._parked.pop(uid, ()):
                self._request(_Request(number, None, closes=True, uid=uid))

    async def run(self) -> None:
        """Have a closer, once there is a connection that needs one."""
        await self._needed.wait()
        while True:
            link = await self._start()
            is_stuck = link is not None and await self._serve(link)
            if not is_stuck:
                await trio.sleep(_RESTART_SECONDS)

    async def _start(self) -> socket.socket | None:
        """Start a closer, which gets copies of the sockets that the front has; its link."""
        self._process = None
        self._started = trio.Event()
        try:
            link = self._fork_server.fork_closer()
        except OSError as error:
            if error.errno not in OUT_OF_RESOURCES | SOCKET_FULL:
                raise
            return None
        link.setblocking(False)
        # Before it has been forked, the fork server has the other end, and must not be its last.
        await self._started.wait()
        if self._process is None:
            link.close()
            return None
        closing = [request for request in self._unsent if request.closes and request.sock]
        self._unsent.clear()
        self._unsent.extend(_Request(number, sock) for sock, number in self._numbers.items())
        self._unsent.extend(closing)
        self._unanswered.clear()
        self._parked.clear()
        return link

    async def _serve(self, link: socket.socket) -> bool:
        """Send requests until this closer has ended, or is stuck; whether it is stuck."""
        self._link = link
        is_stuck = False
        while self._read_answers(link):
            self._send()
            self._answered.unpark_all()
            with trio.CancelScope(deadline=self._wait_until()) as self._patience:
                await trio.lowlevel.wait_readable(link)
            is_late = bool(self._unanswered) and trio.current_time() >= self._answer_due_at
            is_stuck = is_late and not is_readable_within(link, 0)
            if is_stuck:
                self._note_stuck()
                break
        self._link = None
        link.close()
        self._kill()
        return is_stuck

    def _read_answers(self, link: socket.socket) -> bool:
        """Read what there is; whether the closer has not ended."""
        try:
            while link.recv(1):
                self._unanswered.popleft()
                self._expect_answer()
        except BlockingIOError:
            return True
        except ConnectionResetError:
            pass
        return False

    def _note_stuck(self) -> None:
        assert self._process is not None
        pid, uid = self._process.pid, self._unanswered[0].uid
        if uid != _NO_USER:
            self._stuck[pid] = uid
            self._rate_limiter.log("closer-stuck", uid, lambda: CloserStuck(uid=uid, pid=pid))

    def _kill(self) -> None:
        assert self._process is not None
        if self._process.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process.pidfd, signal.SIGKILL)
            os.close(self._process.pidfd)

    # -- the end of the bus --------------------------------------------------------------------
    async def settle(self) -> None:
        """Wait until the closer has copies of all sockets that the front has. From now on they are
        closed by the end of the closer."""
        self._is_ending = True
        self._send()
        with trio.move_on_after(_SETTLE_SECONDS_MAX):
            while self._unsent or self._unanswered:
                await self._answered.park()

    def end(self) -> None:
        """End the closer, if there is one. All other copies are closed. If it gets stuck, it is
        left behind."""
        if self._link is not None and self._process is not None:
            with suppress(BlockingIOError):
                self._send_one(_Request(END, None))
            if self._process.pidfd >= 0:
                is_readable_within(self._process.pidfd, _ANSWER_SECONDS_MAX)
            self._link.close()
            self._kill()

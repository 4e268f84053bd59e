"""What the front and a worker say to each other, and the link that carries it.

Each worker has one SEQPACKET socketpair with the front, non-blocking at both ends. A descriptor
travels with `AdoptClient`, `ApplySettings` and `StartStream` only. Neither side waits for the
other: what the kernel does not take at once waits in a queue, whose length is bounded by the number
of clients.
"""

import socket
from collections import deque

import msgspec
import trio

from sbus.broker.ipc.queries import Query
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import DescriptorsLost, receive_owning_fds, send_borrowing_fds


class AdoptClient(msgspec.Struct, frozen=True, tag=True):
    """Front to worker, with the client's socket: this client is yours. `account` is the place of
    its user's account."""

    client: int
    credentials: Credentials
    account: int
    rules: bytes = b""
    """The access rules that concern it, as `access.pack` writes them."""


class ApplySettings(msgspec.Struct, frozen=True, tag=True):
    """Front to worker, with a memfd that holds a `SettingsUpdate`: go by that from now on, then
    say so with this number."""

    number: int


class Quiesce(msgspec.Struct, frozen=True, tag=True):
    """Front to worker: read no more from any client, then say so."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Front to worker: everybody is quiet; deliver what is left, and end."""


class RunQuery(msgspec.Struct, frozen=True, tag=True):
    """Front to worker: an administrator, or a user, wants to know. Answered with this number."""

    question: int
    about: Query


class DisconnectClient(msgspec.Struct, frozen=True, tag=True):
    """Front to worker: an administrator disconnects this client."""

    client: int
    text: str


class SelfServiceReply(msgspec.Struct, frozen=True, tag=True):
    """Front to worker: this packet answers what `SelfServiceRequest` asked for this client."""

    client: int
    packet: bytes


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """Worker to front: I serve."""


class WorkerQuiesced(msgspec.Struct, frozen=True, tag=True):
    """Worker to front: I read no more; everything that I read has its place in the order, but for
    what is held back by a stalled client or by its user's rate."""


class SettingsApplied(msgspec.Struct, frozen=True, tag=True):
    """Worker to front: I go by these settings, and so does whoever waits for my clients."""

    number: int


class ClientLeft(msgspec.Struct, frozen=True, tag=True):
    """Worker to front: this client has left; `reason` is "" when it did so by itself."""

    client: int
    reason: str


class QueryReply(msgspec.Struct, frozen=True, tag=True):
    """Worker to front: the encoded answer to a question."""

    question: int
    data: bytes


class SelfServiceRequest(msgspec.Struct, frozen=True, tag=True):
    """Worker to front: this client wants to know what the bus has of its user. It is not read any
    further until it is told."""

    client: int


class StartStream(msgspec.Struct, frozen=True, tag=True):
    """Front to worker, with a watcher's connection: write this stream to it, `messages` or
    `events`. `patterns` and `payload` are about messages, as `admin.Monitor` has them."""

    watch: int
    stream: str
    patterns: list[bytes] = []
    payload: bool = False


class StopStream(msgspec.Struct, frozen=True, tag=True):
    """Front to worker: write that stream no more."""

    watch: int


class StreamStarted(msgspec.Struct, frozen=True, tag=True):
    """Worker to front: this stream has begun here, or cannot, for want of descriptors."""

    watch: int
    has_begun: bool = True


WorkerCommand = (
    AdoptClient
    | ApplySettings
    | Quiesce
    | Stop
    | RunQuery
    | DisconnectClient
    | SelfServiceReply
    | StartStream
    | StopStream
)
WorkerEvent = (
    WorkerReady
    | WorkerQuiesced
    | SettingsApplied
    | ClientLeft
    | QueryReply
    | SelfServiceRequest
    | StreamStarted
)

_PACKET_BYTES_MAX = 100 * 1024
"""The largest is an answer. A buffer of this size comes from the heap, a larger one is mapped anew
each time."""
_encoder = msgspec.msgpack.Encoder()
_order_decoder = msgspec.msgpack.Decoder(WorkerCommand)
_report_decoder = msgspec.msgpack.Decoder(WorkerEvent)


def lost_order(lost: DescriptorsLost) -> WorkerCommand:
    """The order whose descriptor did not arrive."""
    order: WorkerCommand = _order_decoder.decode(lost.data)
    return order


class Link:
    """One end. Owns its socket; runs a task in `nursery` while something is queued."""

    def __init__(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._nursery = nursery
        self._unsent: deque[tuple[bytes, int | None]] = deque()

    def send(self, what: WorkerCommand | WorkerEvent, fd: int | None = None) -> None:
        """Send, or queue when the other side is slow. Borrows `fd` until it is sent.

        What the other side does not live to receive is dropped: its death is noticed elsewhere.
        """
        data = _encoder.encode(what)
        if self._unsent:
            self._unsent.append((data, fd))
        elif not self._try_to_send(data, fd):
            self._unsent.append((data, fd))
            self._nursery.start_soon(self._flush)

    def _try_to_send(self, data: bytes, fd: int | None) -> bool:
        try:
            send_borrowing_fds(self._sock, data, [] if fd is None else [fd])
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True
        return True

    @property
    def queued(self) -> int:
        """How much waits for the other side to read."""
        return len(self._unsent)

    async def _flush(self) -> None:
        while self._unsent:
            data, fd = self._unsent[0]
            if self._try_to_send(data, fd):
                self._unsent.popleft()
                continue
            try:
                await trio.lowlevel.wait_writable(self._sock)
            except trio.ClosedResourceError:
                return

    async def wait(self) -> None:
        """Wait until there is something to receive."""
        await trio.lowlevel.wait_readable(self._sock)

    def receive_order(self) -> tuple[WorkerCommand | None, list[int]]:
        """The next order and the descriptors that came with it; None when the front is gone.

        Raises BlockingIOError when there is none, DescriptorsLost.
        """
        data, fds = receive_owning_fds(self._sock, _PACKET_BYTES_MAX)
        return (_order_decoder.decode(data) if data else None), fds

    def receive_report(self) -> WorkerEvent | None:
        """The next report; None when the worker is gone. Raises BlockingIOError."""
        try:
            data = self._sock.recv(_PACKET_BYTES_MAX)
        except ConnectionResetError:
            return None
        return _report_decoder.decode(data) if data else None

    def close(self) -> None:
        self._unsent.clear()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()

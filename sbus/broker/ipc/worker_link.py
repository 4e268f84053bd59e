"""The link between the front and one worker: a non-blocking SEQPACKET socketpair.

Neither side waits for the other. What the kernel does not take at once waits in a queue, whose
length is bounded by the number of clients. The queue owns copies of the descriptors in it, so a
sender may close its own at any time. If no descriptor is left for a copy, the command goes without
it, and the worker declines the command.
"""

import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import trio

from sbus.broker.ipc.room import wait_for_room
from sbus.broker.ipc.worker_protocol import WITH_DESCRIPTOR, WorkerCommand, WorkerEvent
from sbus.unix.errno_sets import OUT_OF_RESOURCES
from sbus.unix.fd_passing import DescriptorsLost, receive_owning_fds, send_borrowing_fds
from sbus.unix.send_buffer import unread_bytes

_PACKET_BYTES_MAX = 100 * 1024
"""The largest is a reply to a query. A buffer of this size comes from the heap, a larger one is
mapped anew each time."""
_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(WorkerCommand)
_event_decoder = msgspec.msgpack.Decoder(WorkerEvent)


def encode_packet(packet: WorkerCommand | WorkerEvent) -> bytes:
    """A packet as it crosses the link."""
    return _encoder.encode(packet)


def send_event(sock: socket.socket, event: WorkerEvent) -> None:
    """Send an event on a new link, before a `WorkerLink` has its socket."""
    with suppress(BrokenPipeError, ConnectionResetError):  # reading shows that the front has ended
        sock.send(encode_packet(event))


def lost_command(lost: DescriptorsLost) -> WorkerCommand:
    """The command whose descriptor did not arrive."""
    command: WorkerCommand = _command_decoder.decode(lost.data)
    return command


class WorkerLink:
    """One end. Owns its socket; runs a task in `nursery` while something is queued."""

    def __init__(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._nursery = nursery
        self._unsent: deque[tuple[bytes, int | None]] = deque()
        self._sent = trio.lowlevel.ParkingLot()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def queued(self) -> int:
        """How many packets wait here, because the kernel takes no more."""
        return len(self._unsent)

    def unread_bytes(self) -> int:
        """The kernel's memory for the packets that the other side has not read yet."""
        return unread_bytes(self._sock)

    def send(self, packet: WorkerCommand | WorkerEvent, fd: int | None = None) -> None:
        """Send, or queue when the other side is slow. Borrows `fd`.

        A packet to a side that has ended is not sent: its end is noticed by reading.
        """
        data = encode_packet(packet)
        if self._unsent:
            self._unsent.append((data, _copy(fd)))
        elif not self._try_to_send(data, fd):
            self._unsent.append((data, _copy(fd)))
            self._nursery.start_soon(self._flush)

    def _try_to_send(self, data: bytes, fd: int | None) -> bool:
        try:
            send_borrowing_fds(self._sock, data, [] if fd is None else [fd])
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True
        return True

    async def _flush(self) -> None:
        while self._unsent:
            if self._try_to_send(*self._unsent[0]):
                self._drop_first()
                continue
            try:
                await wait_for_room(self._sock)
            except trio.ClosedResourceError:
                return
        self._sent.unpark_all()

    def _drop_first(self) -> None:
        _, copy = self._unsent.popleft()
        if copy is not None:
            os.close(copy)

    async def wait_until_sent(self) -> None:
        """Wait until nothing is queued, or this end is closed."""
        await trio.lowlevel.checkpoint()
        while self._unsent:
            await self._sent.park()

    async def wait(self) -> None:
        """Wait until there is something to receive."""
        await trio.lowlevel.wait_readable(self._sock)

    def receive_command(self) -> tuple[WorkerCommand | None, list[int]]:
        """The next command and the descriptors that came with it; None when the front has ended.

        Raises BlockingIOError when there is none, DescriptorsLost.
        """
        data, fds = receive_owning_fds(self._sock, _PACKET_BYTES_MAX)
        command = _command_decoder.decode(data) if data else None
        if isinstance(command, WITH_DESCRIPTOR) and not fds:
            raise DescriptorsLost(data)
        return command, fds

    def receive_event(self) -> WorkerEvent | None:
        """The next event; None when the worker has ended. Raises BlockingIOError."""
        try:
            data = self._sock.recv(_PACKET_BYTES_MAX)
        except ConnectionResetError:
            return None
        return _event_decoder.decode(data) if data else None

    def unread_events(self) -> Iterator[WorkerEvent]:
        """The events of a worker that has ended."""
        with suppress(BlockingIOError):
            while (event := self.receive_event()) is not None:
                yield event

    async def wait_for_event(self) -> WorkerEvent | None:
        """The next event; None when the worker has ended, or this end is closed."""
        while self._sock.fileno() >= 0:
            try:
                return self.receive_event()
            except BlockingIOError:
                with suppress(trio.ClosedResourceError):
                    await self.wait()
        return None

    def close(self) -> None:
        while self._unsent:
            self._drop_first()
        self._sent.unpark_all()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


def _copy(fd: int | None) -> int | None:
    """A copy of a descriptor; None if this process has no descriptor left."""
    try:
        return None if fd is None else os.dup(fd)
    except OSError as error:
        if error.errno not in OUT_OF_RESOURCES:
            raise
        return None

"""The two sources of messages for a recording: a subscription, and the monitor's stream.

A subscription is what any client can have. The stream of the admin socket also tells the publisher
and the recipients of each message, and of secret messages the key. Either puts what it receives
into its buffer; where messages are missing, it puts a gap.
"""

import time
from collections.abc import Sequence
from functools import partial

import trio

from sbus.client.admin import AdminConnection
from sbus.client.inbox import parse_lost_count
from sbus.client.link import CONNECT_RETRY_SECONDS, PACKET_BYTES_MAX, Link
from sbus.client.message_queue import Lost
from sbus.client.options import LinkOptions
from sbus.client.streams import BatchStream
from sbus.errors import Disconnected, PacketRefused, ProtocolViolation
from sbus.pipeline.recorder.buffer import MonitorBuffer, PacketBuffer
from sbus.protocol import controls
from sbus.protocol.controls import Soft
from sbus.protocol.packets import (
    PUBLISH_WORD,
    ControlMessage,
    encode_control,
    encode_subscribe,
    parse_server_packet,
)

_BATCH_PACKETS = 256
"""Read before other tasks get their turn."""
_ALLOCATOR_BYTES = 4 * 1024 * 1024
_POLL_SECONDS = 0.02
"""The stream holds messages back until earlier ones are there, and does not tell when they are."""
_PAUSE_SECONDS = 0.005
"""Between two reads of the stream: what comes meanwhile is read at once, and needs no wake-up."""
_CATCH_UP_SECONDS = 0.1
"""Within this time an idle worker tells of all messages published before."""


class SubscriptionSource:
    """Receives packets that match `patterns`, many at a time, each with its time of arrival.

    The bus is asked to queue what does not fit into the socket. A packet that the bus refuses ends
    the recording.
    """

    def __init__(
        self,
        address: str | None,
        options: LinkOptions,
        patterns: Sequence[bytes],
        buffer: PacketBuffer,
    ) -> None:
        self._link: Link[Lost] = Link(address, "report", options)
        self._packet_bytes_max = options.get("packet_bytes_max", PACKET_BYTES_MAX)
        self._patterns = patterns
        self._buffer = buffer
        self._replies_due = 0
        self._may_have_more = True
        # Once it has freed a larger block, the allocator serves packet buffers from its heap.
        bytes(_ALLOCATOR_BYTES)

    def close(self) -> None:
        self._link.close()

    async def connect(self) -> None:
        """Raises AddressError."""
        while not self._link.connect_nowait():  # noqa: ASYNC110 (a full queue sends no event)
            await trio.sleep(CONNECT_RETRY_SECONDS)

    async def begin(self) -> None:
        """Subscribe: what is published after this returns is received. Raises Disconnected,
        PacketRefused."""
        await self._send(self._link.barrier.greeting)
        if self._link.dialect.has_control_messages:
            await self._send(encode_control(b"blocking/soft/" + Soft.QUEUE.value.encode()))
        for pattern in self._patterns:
            await self._send(encode_subscribe(pattern))
        await self.catch_up()

    async def catch_up(self) -> None:
        """Receive what was published before; in the dot dialect only what is in the socket."""
        if self._link.dialect.has_control_messages:
            await self._send(encode_control(controls.WHOAMI))
            self._replies_due += 1
        while self._replies_due or self._may_have_more:
            await self._receive_some()

    async def receive(self) -> None:
        """Receive until cancelled, which loses nothing. Raises Disconnected, PacketRefused,
        ProtocolViolation."""
        while True:
            await self._receive_some()

    async def _receive_some(self) -> None:
        if self._may_have_more:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._link.sock.fileno())
        if self._buffer.is_full:
            await self._buffer.wait_room()
        self._may_have_more = self._receive_nowait()

    def _receive_nowait(self) -> bool:
        """Take packets from the socket; returns whether it may hold more."""
        receive, now, size = self._link.sock.recv, time.time_ns, self._packet_bytes_max + 1
        packets: list[bytes] = []
        stamps_ns: list[int] = []
        put, stamp = packets.append, stamps_ns.append
        try:
            for _ in range(_BATCH_PACKETS):
                packet = receive(size)
                if packet[:4] == PUBLISH_WORD:
                    put(packet)
                    stamp(now())
                else:
                    self._put(packets, stamps_ns)
                    self._handle_control(packet)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # reported once, before the remaining packets and the end
        finally:
            self._put(packets, stamps_ns)
        return True

    def _put(self, packets: list[bytes], stamps_ns: list[int]) -> None:
        """Move these into the buffer, which empties both lists."""
        if packets and max(map(len, packets)) > self._packet_bytes_max:
            raise ProtocolViolation(
                f"a packet of more than {self._packet_bytes_max} bytes came: this bus carries "
                "larger ones than can be recorded"
            )
        if packets:
            self._buffer.put(packets, stamps_ns)
        packets.clear()
        stamps_ns.clear()

    def _handle_control(self, packet: bytes) -> None:
        if not packet:
            raise Disconnected("the bus has closed the connection")
        control = parse_server_packet(packet)
        assert isinstance(control, ControlMessage)
        if control.key == controls.LOST:
            self._buffer.put_gap(parse_lost_count(control.payload))
        elif control.key == controls.WHOAMI:
            self._replies_due -= 1
        elif control.key == controls.ERROR:
            code, _, text = control.payload.decode(errors="backslashreplace").partition(" ")
            raise PacketRefused(code, text)

    async def _send(self, packet: bytes) -> None:
        try:
            while not self._link.send_nowait(packet):
                await trio.lowlevel.wait_writable(self._link.sock.fileno())
        except BrokenPipeError as error:
            raise Disconnected("the bus has closed the connection") from error


class MonitorSource:
    """Receives messages that match `patterns` over a connection to the admin socket, and owns it.

    What the bus cannot send, because it is not read fast enough, is a loss in its place.
    """

    def __init__(
        self, connection: AdminConnection, patterns: Sequence[bytes], buffer: MonitorBuffer
    ) -> None:
        self._connection = connection
        self._patterns = patterns
        self._buffer = buffer
        self._stream: BatchStream | None = None

    async def begin(self) -> None:
        """What is published after this returns is received. Raises AdminError, Disconnected."""
        subscribe = partial(BatchStream, self._connection, self._patterns, payload=True)
        self._stream = await trio.to_thread.run_sync(subscribe)

    async def receive(self) -> None:
        """Receive until cancelled, which loses nothing. Raises Disconnected."""
        assert self._stream is not None
        while True:
            with trio.move_on_after(_POLL_SECONDS):
                await trio.lowlevel.wait_readable(self._connection.fileno())
            if self._buffer.is_full:
                await self._buffer.wait_room()
            if items := self._stream.receive_many(0):
                self._buffer.put(items)
            await trio.sleep(_PAUSE_SECONDS)

    async def catch_up(self) -> None:
        """Receive what was published before. Raises Disconnected."""
        with trio.move_on_after(_CATCH_UP_SECONDS):
            await self.receive()

    def close(self) -> None:
        self._connection.close()


Source = SubscriptionSource | MonitorSource

"""Receiving messages for a recording, by a plain subscription.

Packets are read as fast as they come, many at a time, and put aside as they are, each with the time
at which it came. What the bus says itself is looked at: losses are put in their place, a refusal
ends the recording. The bus is asked to queue what does not fit the socket.

Knows nothing of what becomes of a packet.
"""

import time
from collections.abc import Sequence

import trio

from sbus.client.inbox import Lost
from sbus.client.link import CONNECT_RETRY_SECONDS, PACKET_BYTES_MAX, Link, LinkOptions
from sbus.errors import Disconnected, PacketRefused, ProtocolViolation
from sbus.pipeline.pending import PendingPackets
from sbus.protocol import controls
from sbus.protocol.controls import Soft
from sbus.protocol.packets import (
    PUBLISH_WORD,
    ControlMessage,
    encode_control,
    encode_subscribe,
    parse_server_packet,
)

_PACKETS_AT_ONCE = 512
"""Read before other tasks have their turn."""
_ALLOCATOR_BYTES = 4 * 1024 * 1024
_COUNT_DIGITS_MAX = 18


class Subscription:
    """Receives what matches `patterns` into `pending`; to be closed."""

    def __init__(
        self,
        address: str | None,
        options: LinkOptions,
        patterns: Sequence[bytes],
        pending: PendingPackets,
    ) -> None:
        self._link: Link[Lost] = Link(address, "report", options)
        self._packet_bytes_max = options.get("packet_bytes_max", PACKET_BYTES_MAX)
        self._patterns = patterns
        self._pending = pending
        self._answers_due = 0
        self._more = True
        """Whether there may be something to read."""
        # The allocator serves the buffer for each packet from its heap once it had a larger block.
        bytes(_ALLOCATOR_BYTES)

    def close(self) -> None:
        self._link.close()

    async def connect(self) -> None:
        """Raises AddressError."""
        while not self._link.connect_nowait():  # noqa: ASYNC110 (a full queue sends no event)
            await trio.sleep(CONNECT_RETRY_SECONDS)

    async def begin(self) -> None:
        """Subscribe: what is published after this returns is received.

        Raises Disconnected, PacketRefused.
        """
        await self._send(self._link.barrier.greeting)
        if self._link.dialect.has_control_messages:
            await self._send(encode_control(b"blocking/soft/" + Soft.QUEUE.value.encode()))
        for pattern in self._patterns:
            await self._send(encode_subscribe(pattern))
        await self.catch_up()

    async def catch_up(self) -> None:
        """Receive everything that was published before; in the dot dialect what is there."""
        if self._link.dialect.has_control_messages:
            await self._send(encode_control(controls.WHOAMI))
            self._answers_due += 1
        while self._answers_due or self._more:
            await self._receive_some()

    async def receive(self) -> None:
        """Receive until cancelled, whereby nothing is lost.

        Raises Disconnected, PacketRefused, ProtocolViolation.
        """
        while True:
            await self._receive_some()

    async def _receive_some(self) -> None:
        if self._more:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._link.sock.fileno())
        if self._pending.is_full:
            await self._pending.wait_room()
        self._more = self._read_nowait()

    def _read_nowait(self) -> bool:
        """Take packets from the socket; whether more may be there."""
        receive, now, size = self._link.sock.recv, time.time_ns, self._packet_bytes_max + 1
        packets: list[bytes] = []
        stamps_ns: list[int] = []
        put, stamp = packets.append, stamps_ns.append
        try:
            for _ in range(_PACKETS_AT_ONCE):
                packet = receive(size)
                if packet[:4] == PUBLISH_WORD:
                    put(packet)
                    stamp(now())
                else:
                    self._put(packets, stamps_ns)
                    self._take_other(packet)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # said once, and before the packets that are still there, and their end
        finally:
            self._put(packets, stamps_ns)
        return True

    def _put(self, packets: list[bytes], stamps_ns: list[int]) -> None:
        """Put these aside; both lists are empty then."""
        if packets and max(map(len, packets)) > self._packet_bytes_max:
            raise ProtocolViolation(
                f"a packet of more than {self._packet_bytes_max} bytes came: this bus carries "
                "larger ones than can be recorded"
            )
        if packets:
            self._pending.put(packets, stamps_ns)
        packets.clear()
        stamps_ns.clear()

    def _take_other(self, packet: bytes) -> None:
        if not packet:
            raise Disconnected("the bus has closed the connection")
        said = parse_server_packet(packet)
        assert isinstance(said, ControlMessage)
        if said.key == controls.LOST:
            self._pending.put_gap(_count(said.payload))
        elif said.key == controls.WHOAMI:
            self._answers_due -= 1
        elif said.key == controls.ERROR:
            code, _, text = said.payload.decode(errors="backslashreplace").partition(" ")
            raise PacketRefused(code, text)

    async def _send(self, packet: bytes) -> None:
        try:
            while not self._link.send_nowait(packet):
                await trio.lowlevel.wait_writable(self._link.sock.fileno())
        except BrokenPipeError as error:
            raise Disconnected("the bus has closed the connection") from error


def _count(payload: bytes) -> int | None:
    if payload == b"?":
        return None
    if not payload.isdigit() or len(payload) > _COUNT_DIGITS_MAX:
        raise ProtocolViolation(f"the bus reported {payload[:32]!r} messages lost")
    return int(payload)

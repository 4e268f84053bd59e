"""Reading the socket of a connection, several packets at a time."""

import socket
from contextlib import suppress
from typing import Final

_SO_PEEK_OFF: Final = 42
_NOTHING: Final = bytearray(1)
"""For what is dropped."""


class PacketReader:
    """Has the buffer that packets are read into."""

    flags = socket.MSG_TRUNC

    def __init__(self, packet_bytes_max: int) -> None:
        self.packet_bytes_max = packet_bytes_max
        self._view = memoryview(bytearray(packet_bytes_max))

    def read(
        self, sock: socket.socket, packets_max: int, bytes_max: int
    ) -> tuple[list[bytes], int | None]:
        """Up to so many packets and bytes; the bytes may be exceeded by one packet.

        Behind them comes 0 for the end of the connection, the size of a packet that is too long, or
        None.
        """
        receive_into, view, longest = sock.recv_into, self._view, self.packet_bytes_max
        flags = self.flags
        packets: list[bytes] = []
        while len(packets) < packets_max and bytes_max > 0:
            try:
                length = receive_into(view, 0, flags)
            except BlockingIOError:
                break
            except ConnectionResetError:
                # Reported once, before the packets that are still there and the end.
                continue
            if not 0 < length <= longest:
                return packets, length
            packets.append(view[:length].tobytes())
            bytes_max -= length
        return packets, None


class PeekingReader(PacketReader):
    """Leaves what it reads in the socket until that is taken; each read goes on behind the one
    before, because the socket counts the bytes. Source: SO_PEEK_OFF in socket(7)."""

    flags = socket.MSG_TRUNC | socket.MSG_PEEK


def begin_peeking(sock: socket.socket) -> None:
    """The next `PeekingReader` begins with the first packet in the socket."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)


def take_peeked(sock: socket.socket) -> None:
    """Take everything from the socket that was read there, by this or an earlier process."""
    while sock.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF) > 0:
        with suppress(ConnectionResetError):  # reported once, before the packets
            sock.recv_into(_NOTHING)

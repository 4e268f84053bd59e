"""Reading the socket of a connection, several packets at a time."""

import socket


class PacketReader:
    """Has the buffer that packets are read into."""

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
        packets: list[bytes] = []
        while len(packets) < packets_max and bytes_max > 0:
            try:
                length = receive_into(view, 0, socket.MSG_TRUNC)
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

"""The send buffer of a socket, which bounds the kernel's memory for a peer that does not read."""

import fcntl
import socket
import struct
import termios

from sbus.limits import Limits

SMALL_BUFFER_BYTES = 32_768
"""SO_SNDBUF of a client that reads: the kernel doubles it, and then it has room for the messages of
one turn, some eighty of 100 bytes."""
_PACKET_OVERHEAD_BYTES = 32
"""What the kernel takes off SO_SNDBUF before it compares a packet with it."""
_INT = struct.Struct("i")


def large_buffer_bytes(limits: Limits) -> int:
    """SO_SNDBUF to ask for, so that twice of it, which the kernel sets, takes any packet."""
    half = (limits.packet_bytes_max + _PACKET_OVERHEAD_BYTES + 1) // 2
    return max(limits.socket_buffer_bytes, half)


def small_buffer_bytes(limits: Limits) -> int:
    """SO_SNDBUF for as long as a large one is not needed."""
    return min(SMALL_BUFFER_BYTES, large_buffer_bytes(limits))


def packet_bytes_carried(limits: Limits) -> int:
    """The largest packet that this kernel takes from a socket of a bus with these limits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, large_buffer_bytes(limits))
        effective = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return effective - _PACKET_OVERHEAD_BYTES


def unread_bytes(sock: socket.socket) -> int:
    """The memory of all packets that were sent to the peer and that it has not read."""
    # SIOCOUTQ has the same number.
    (size_bytes,) = _INT.unpack(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(_INT.size)))
    return int(size_bytes)


def has_unread(sock: socket.socket) -> bool:
    """Whether the peer has not read everything, and has not closed its end either."""
    # While a packet is being freed, after the writer was woken, its last byte still counts.
    return unread_bytes(sock) > 1

"""The sockets of clients, and the errors when they cannot be connected."""

import errno
import socket
from collections.abc import Mapping

from sbus.errors import AddressError, ConfigurationError

PACKET_OVERHEAD_BYTES = 32
"""What the kernel needs of `SO_SNDBUF` besides the packet, see unix_dgram_sendmsg()."""
BUS_ABSENT = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET})
"""connect(2): there is no bus, now; a bus that is started makes its socket anew."""
_NO_ACCESS = "only users with access to the socket and its directories may use this bus"
BUS_ADVICE = {
    errno.ENOENT: "is sbusd running, and is this its address?",
    errno.ECONNREFUSED: "is sbusd running? Nothing listens there",
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EPROTOTYPE: "that socket is of another type, and no sbus",
    errno.ENOTDIR: "is this the address of a bus?",
}
"""What to do when connect(2) to a bus fails."""


def open_socket(packet_bytes_max: int) -> socket.socket:
    """A non-blocking socket that can send packets of this size.

    Raises ConfigurationError when the kernel does not allow that.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"cannot open a socket: {error.strerror}") from error
    needed = packet_bytes_max + PACKET_OVERHEAD_BYTES
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < needed:
        # The kernel limits the value to its ceiling, and then doubles it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, needed // 2 + 1)
        granted = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        if granted < needed:
            sock.close()
            raise ConfigurationError(
                f"packets of {packet_bytes_max} bytes cannot be sent from here: the kernel allows "
                f"{granted} bytes for a socket; lower packet_bytes_max, or set net.core.wmem_max "
                f"to {needed // 2 + 1} or more"
            )
    return sock


def connect_error(address: str, error: OSError, advice: Mapping[int, str]) -> AddressError:
    """Where, why, and what to do, in one line."""
    text = f"cannot connect to {address}: {error.strerror or error}"
    what_to_do = advice.get(error.errno or 0)
    return AddressError(f"{text}: {what_to_do}" if what_to_do else text)

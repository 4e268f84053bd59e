"""Waiting for room on a link between processes."""

import socket
from typing import Final

import trio

RETRY_SECONDS: Final = 0.001
"""Nothing tells when the kernel has room for descriptors again."""


async def wait_for_room(sock: socket.socket) -> None:
    """Wait until a packet for which the socket, or the kernel, had no room is worth another try."""
    await trio.lowlevel.wait_writable(sock)
    await trio.sleep(RETRY_SECONDS)

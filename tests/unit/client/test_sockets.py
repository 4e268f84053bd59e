"""Sockets of clients: room for the largest packet, whatever the kernel's default is."""

import socket

import pytest

from sbus.client.sockets import open_socket
from sbus.errors import ConfigurationError


def test_the_largest_packet_fits_whatever_the_kernels_default_is() -> None:
    with open_socket(409_600) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 409_600 + 32


def test_the_ceiling_of_an_ordinary_kernel_is_not_exceeded() -> None:
    """The kernel doubles what it is asked for: 212,992, the usual `wmem_max`, is enough."""
    asked: list[int] = []

    class Recorder(socket.socket):
        def setsockopt(self, level: int, option: int, value: int) -> None:  # type: ignore[override]
            asked.append(value)
            super().setsockopt(level, option, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", Recorder)
        open_socket(409_600).close()
    assert len(asked) == 1
    assert asked[0] <= 212_992


def test_a_packet_that_the_kernel_cannot_carry_is_an_error_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"net\.core\.wmem_max"):
        open_socket(2**30)

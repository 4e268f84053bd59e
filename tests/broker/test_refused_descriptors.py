"""A bus that refuses descriptors: the sender gets an error from the kernel, and that is all."""

import array
import errno
import os
import socket
from pathlib import Path

import pytest

from tests.support.bus import running_bus

SO_PASSRIGHTS = 83


@pytest.fixture(autouse=True)
def _kernel_can_refuse() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
        except OSError:
            pytest.skip("refusing descriptors needs Linux 6.16")


def test_a_packet_with_descriptors_is_refused_to_its_sender_only(tmp_path: Path) -> None:
    with (
        running_bus(tmp_path, "--refuse-descriptors") as bus,
        bus.connect() as sender,
        bus.connect() as receiver,
    ):
        receiver.sub(b"k")
        assert receiver.sync() == []
        with open(os.devnull, "rb") as null:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()]))
            with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
                sender.sock.sendmsg([b"MSG k\0with"], [rights])
        sender.pub(b"k", b"without")
        assert sender.sync() == []
        assert receiver.sync() == [b"MSG k\0without"]

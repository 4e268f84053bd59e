"""The process that connected: alive, ended, inherited from, and the one with its number."""

import errno
import os
import select
import socket
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from sbus.unix import peer_process
from sbus.unix.credentials import peer_credentials
from sbus.unix.peer_process import PeerProcess, began_at_ticks, has_peer_pidfds
from tests.support.inheritance import Inherited, inherited_connection

SOON_SECONDS = 60.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind("")
        sock.listen()
        sock.settimeout(SOON_SECONDS)
        yield sock


@pytest.fixture(params=["by pidfd", "by start time"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a process is told from a later one of its number."""
    if request.param == "by start time":
        monkeypatch.setattr(peer_process, "has_peer_pidfds", lambda: False)
        monkeypatch.setattr("sbus.unix.credentials.has_peer_pidfds", lambda: False)
    elif not has_peer_pidfds():
        pytest.skip("needs Linux 6.5 for SO_PEERPIDFD")
    return str(request.param)


def accepted(listener: socket.socket) -> tuple[socket.socket, PeerProcess]:
    sock, _ = listener.accept()
    own = peer_credentials(sock)
    return sock, PeerProcess(sock, own.pid, own.began_at_ticks)


@pytest.mark.usefixtures("way")
def test_a_living_process_has_not_ended(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(listener.getsockname())
        sock, process = accepted(listener)
        with sock:
            process.watch()
            assert not process.has_ended()
            process.close()
            assert process.has_ended(), "closed means that nobody can tell any more"


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
def test_the_end_is_seen_at_once_though_a_child_holds_the_connection(
    listener: socket.socket, reaped: bool
) -> None:
    with inherited_connection(listener.getsockname()) as inherited:
        sock, process = accepted(listener)
        with sock:
            process.watch()
            assert not process.has_ended()
            end_of(inherited, reaped)
            assert not select.select([sock], [], [], 0)[0], "the child must hold the connection"
            assert process.has_ended()
            assert process.has_ended()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
def test_a_process_that_ended_before_it_was_watched_has_ended(
    listener: socket.socket, reaped: bool
) -> None:
    with inherited_connection(listener.getsockname()) as inherited:
        sock, process = accepted(listener)
        with sock:
            end_of(inherited, reaped)
            process.watch()
            assert process.has_ended()


def end_of(inherited: Inherited, reaped: bool) -> None:
    if reaped:
        inherited.end_parent()
    else:
        inherited.end_parent_as_zombie()


def test_a_later_process_with_the_same_id_is_a_different_one() -> None:
    """By start time, at the kernel's edge: number 4711 is given away again."""
    began: dict[int, int | None] = {4711: 100}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ours,
        theirs,
        patch.object(peer_process, "has_peer_pidfds", lambda: False),
        patch.object(peer_process, "began_at_ticks", lambda pid: began[pid]),
    ):
        first = PeerProcess(ours, 4711, 100)
        first.watch()
        assert not first.has_ended()
        began[4711] = 200
        second = PeerProcess(theirs, 4711, 200)
        assert first.has_ended()
        assert not second.has_ended()
        began[4711] = 100
        assert first.has_ended(), "an end is an end"


def test_an_unidentified_process_counts_as_ended() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert PeerProcess(ours, os.getpid(), None).has_ended()


@pytest.mark.skipif(not has_peer_pidfds(), reason="needs Linux 6.5 for SO_PEERPIDFD")
def test_watching_costs_one_descriptor_and_gives_it_back() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        process = PeerProcess(ours, os.getpid(), None)
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            process.watch()
        assert len(os.listdir("/proc/self/fd")) == len(before) + 1
        process.close()
        process.watch()
        assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("code", "ended"), [(errno.ESRCH, True), (errno.EINVAL, True), (errno.EMFILE, False)]
)
def test_errors_of_the_kernel_instead_of_a_pidfd(code: int, ended: bool) -> None:
    class Sock:
        def getsockopt(self, *_: object) -> int:
            raise OSError(code, os.strerror(code))

    process = PeerProcess(Sock(), 1, None)  # type: ignore[arg-type]
    with patch.object(peer_process, "has_peer_pidfds", lambda: True):
        if ended:
            process.watch()
        else:
            with pytest.raises(OSError, match="Too many open files"):
                process.watch()
        assert process.has_ended()


def test_saved_ids_are_those_of_the_process() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        own = PeerProcess(ours, os.getpid(), None).saved_ids()
        assert own == (os.getresgid()[2], os.getresuid()[2])
        assert PeerProcess(ours, 0, None).saved_ids() is None


def test_saved_ids_are_read_whatever_the_process_is_called() -> None:
    status = b"Name:\ta\\nUid:\t1\t1\t1\t1\nState:\tS\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, patch("pathlib.Path.read_bytes", lambda _: status):
        assert PeerProcess(ours, 77, None).saved_ids() == (7, 3)


def test_start_times_are_those_of_living_processes() -> None:
    own = began_at_ticks(os.getpid())
    assert own is not None
    assert own == began_at_ticks(os.getpid())
    assert began_at_ticks(0) is None
    assert began_at_ticks(2**22 + 1) is None, "beyond the largest process id there is"
    init = began_at_ticks(1)
    assert init is None or init <= own


@pytest.mark.parametrize("name", [b"cat", b") R 1 (", b"a b) Z 1"])
def test_a_start_time_is_read_whatever_the_process_is_called(name: bytes) -> None:
    fields = b" ".join([b"S", *(b"%d" % number for number in range(4, 53))])
    with patch("pathlib.Path.read_bytes", lambda _: b"77 (" + name + b") " + fields):
        assert began_at_ticks(77) == 22

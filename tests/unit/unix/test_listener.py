"""Listening sockets: bound as asked, exactly as open as asked, and gone without a trace."""

import errno
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from sbus.errors import AddressError
from sbus.unix.address import FdAddress, PathAddress, RandomAbstractAddress, parse_address
from sbus.unix.fd_passing import may_carry_descriptors, refuse_descriptors
from sbus.unix.listener import Listener, _give_to_group, is_bound, open_listener
from tests.support.children import children_at_once
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root

MODES = [0o700, 0o770, 0o707, 0o777]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bus"


def listen_at(path: Path, *, mode: int = 0o700, replace: bool = False) -> Listener:
    return open_listener(PathAddress(str(path)), mode=mode, replace=replace)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def connect_and_exchange(listener: Listener) -> None:
    """Prove that packets reach this very listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(60)
        client.connect(listener.socket.getsockname())
        client.send(b"packet")
        listener.socket.settimeout(60)
        accepted, _ = listener.socket.accept()
        with accepted:
            assert accepted.recv(100) == b"packet"


def test_descriptors_are_refused_from_the_first_connection_on(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        refuse_descriptors(client)
        if may_carry_descriptors(client):
            pytest.skip("needs Linux 6.16 to refuse descriptors")
        with closing(listen_at(path)) as listener:
            client.connect(str(path))
            served, _ = listener.socket.accept()
            with served:
                assert not may_carry_descriptors(served)


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_mode_is_exact_whatever_the_umask_and_never_mended(
    path: Path, mode: int, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mode that is right without a chmod was never another."""

    def no_chmod(*_arguments: object, **_options: object) -> None:
        raise AssertionError("the mode of a file that exists was changed")

    monkeypatch.setattr(os, "chmod", no_chmod)
    previous = os.umask(umask)
    try:
        with closing(listen_at(path, mode=mode)):
            assert mode_of(path) == mode
        assert os.umask(umask) == umask
    finally:
        os.umask(previous)


def test_directory_that_opens_its_files_to_everybody_does_not_open_the_socket(path: Path) -> None:
    """With a default ACL the kernel leaves the umask out of account."""
    user_object, group_object, others, nobody_particular = 0x01, 0x04, 0x20, 0xFFFFFFFF
    open_to_all = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, 7, nobody_particular)
        for tag in (user_object, group_object, others)
    )
    try:
        os.setxattr(path.parent, "system.posix_acl_default", open_to_all)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("the file system of the temporary directory has no ACLs")
    (path.parent / "witness").touch(0o777)
    assert mode_of(path.parent / "witness") == 0o777
    with closing(listen_at(path)):
        assert mode_of(path) == 0o700


def test_path_that_was_given_relative_is_removed_from_anywhere(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    listener = listen_at(Path(path.name))
    monkeypatch.chdir("/")
    listener.close()
    assert not os.path.lexists(path)


def test_existing_file_is_an_error_and_stays(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(AddressError, match="exists and is not a socket"):
        listen_at(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("kind", [socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_any_bound_socket_is_in_use_also_without_listening(
    path: Path, kind: socket.SocketKind, replace: bool
) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        with pytest.raises(AddressError, match="another process listens there"):
            listen_at(path, replace=replace)
        assert path.is_socket()


def leave_socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))


def test_of_several_that_replace_at_once_one_listens(path: Path) -> None:
    for _ in range(50):
        leave_socket_at(path)
        with children_at_once(4, lambda: listen_at(path, replace=True), AddressError) as listening:
            assert listening == 1
            assert is_bound(str(path)), "its file is gone"
        assert os.listdir(path.parent) == ["bus"]
        path.unlink()


@needs_root
def test_socket_that_may_not_be_tried_is_not_replaced() -> None:
    with directory_for_everybody() as directory:
        directory.chmod(0o777)
        path = directory / "bus"
        leave_socket_at(path)
        path.chmod(0o700)

        def is_refused() -> bool:
            for replace in (False, True):
                with pytest.raises(AddressError, match=r"/bus.*: Permission denied"):
                    listen_at(path, replace=replace)
            return True

        assert as_user(is_refused)
        assert path.is_socket()


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o707])
def test_an_empty_file_is_replaced_on_request_only(path: Path, mode: int) -> None:
    path.touch()
    with pytest.raises(AddressError, match="is an empty file: use -r to replace it"):
        listen_at(path)
    listener = listen_at(path, replace=True, mode=mode)
    assert listener.replaced == f"empty file {path}"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    connect_and_exchange(listener)
    listener.close()


@needs_root
def test_an_empty_file_of_another_user_stays(path: Path) -> None:
    path.touch()
    os.chown(path, STRANGER, -1)
    why = r"cannot replace .*/bus: it is not a socket, nor an empty file of user 0: remove it"
    with pytest.raises(AddressError, match=why):
        listen_at(path, replace=True)
    assert path.is_file()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "link to an empty file"])
def test_does_not_replace_anything_else(path: Path, kind: str) -> None:
    precious = path
    if kind == "file":
        path.write_text("precious")
    elif kind == "link to an empty file":
        (path.parent / "empty").touch()
        path.symlink_to(path.parent / "empty")
        with pytest.raises(AddressError, match="it is not a socket"):
            listen_at(path, replace=True)
        assert path.is_symlink()
        return
    elif kind == "directory":
        path.mkdir()
    else:
        precious = path.parent / "elsewhere"
        precious.write_text("precious")
        path.symlink_to(precious)
    with pytest.raises(AddressError, match=r"cannot replace .*/bus: it is not a socket"):
        listen_at(path, replace=True)
    assert precious.is_dir() if kind == "directory" else precious.read_text() == "precious"
    assert path.is_symlink() is (kind == "link")


def test_file_that_somebody_else_put_there_since_is_left_alone(path: Path) -> None:
    older = listen_at(path)
    path.unlink()
    newer = listen_at(path)
    older.close()
    connect_and_exchange(newer)
    newer.close()
    assert not os.path.lexists(path)


def test_file_that_is_gone_already_is_no_error(path: Path) -> None:
    listener = listen_at(path)
    path.unlink()
    listener.close()


def test_second_close_leaves_a_newer_file_alone(path: Path) -> None:
    listener = listen_at(path)
    listener.close()
    path.write_text("newer")  # on many file systems with the inode number of the older
    listener.close()
    assert path.read_text() == "newer"


# -- abstract names --------------------------------------------------------------------------------


def test_given_name_is_bound_with_all_of_its_108_bytes() -> None:
    name = RandomAbstractAddress().draw().name[:20]
    address = parse_address(f"/dev/unix/abstract/{name.hex()}")
    with closing(open_listener(address, mode=0o700, replace=False)) as listener:
        assert listener.socket.getsockname() == name + bytes(88)
        connect_and_exchange(listener)


# -- inherited sockets -----------------------------------------------------------------------------


@pytest.fixture
def inherited(path: Path) -> Iterator[socket.socket]:
    """A socket bound to `path`, whose number is anybody's; what of it is left is closed here."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(path))
    keeper = sock.dup()
    yield sock
    keeper.close()


@pytest.mark.parametrize("listening", [False, True])
def test_inherited_socket_is_taken_as_it_is(
    inherited: socket.socket, path: Path, listening: bool
) -> None:
    if listening:
        inherited.listen(1)
    path.chmod(0o640)
    number = inherited.detach()
    with closing(open_listener(FdAddress(number), mode=0o777, replace=True)) as listener:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
        assert not listener.socket.get_inheritable()
        assert listener.printable_address == f"/dev/fd/{number}"
        assert not listener.is_abstract
        assert mode_of(path) == 0o640
        connect_and_exchange(listener)
    assert path.is_socket()


def test_inherited_abstract_socket_is_known_as_such() -> None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(RandomAbstractAddress().draw().sockaddr())
    with closing(open_listener(FdAddress(sock.detach()), mode=0o700, replace=False)) as listener:
        assert listener.is_abstract


def refusal_of(sock: socket.socket) -> str:
    with sock:
        with pytest.raises(AddressError) as refused:
            open_listener(FdAddress(sock.fileno()), mode=0o700, replace=False)
        os.fstat(sock.fileno())  # still its owner's
    return str(refused.value)


def test_inherited_socket_that_has_no_address_is_refused() -> None:
    assert "not bound" in refusal_of(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))


def test_inherited_connection_is_refused(path: Path) -> None:
    with closing(listen_at(path)):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.bind(str(path.parent / "client"))
        client.connect(str(path))
        assert "connection" in refusal_of(client)


def test_number_that_is_not_open_is_refused() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    os.close(write_fd)
    with pytest.raises(AddressError, match=rf"/dev/fd/{read_fd}: Bad file descriptor"):
        open_listener(FdAddress(read_fd), mode=0o700, replace=False)


# -- a group ---------------------------------------------------------------------------------------


def test_file_is_given_to_its_group_before_that_may_use_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = os.getegid()
    seen = []
    chown, chmod = os.chown, os.chmod

    def watch_chown(file: str, uid: int, gid: int) -> None:
        seen.append(("chown", mode_of(path)))
        chown(file, uid, gid)

    def watch_chmod(file: str, mode: int) -> None:
        seen.append(("chmod", mode_of(path)))
        assert path.lstat().st_gid == group
        chmod(file, mode)

    monkeypatch.setattr(os, "chown", watch_chown)
    monkeypatch.setattr(os, "chmod", watch_chmod)
    address = PathAddress(str(path))
    with closing(open_listener(address, mode=0o660, replace=False, group=group)) as listener:
        assert seen == [("chown", 0o600), ("chmod", 0o600)]
        assert mode_of(path) == 0o660
        connect_and_exchange(listener)
    assert not os.path.lexists(path)


@needs_root
def test_group_is_any_that_root_names(path: Path) -> None:
    with closing(open_listener(PathAddress(str(path)), mode=0o660, replace=False, group=STRANGER)):
        assert (path.lstat().st_gid, mode_of(path)) == (STRANGER, 0o660)


@needs_root
def test_group_of_others_is_refused_with_advice_and_nothing_is_left() -> None:
    with directory_for_everybody() as directory:
        directory.chmod(0o777)

        def refused() -> bool:
            address = PathAddress(str(directory / "bus"))
            try:
                open_listener(address, mode=0o660, replace=False, group=0)
            except AddressError as error:
                return "to group 0: " in str(error) and "as a member of that group" in str(error)
            return False

        assert as_user(refused)
        assert os.listdir(directory) == []


def test_file_that_took_its_place_meanwhile_is_not_given_away(path: Path) -> None:
    with closing(listen_at(path, mode=0o600)) as listener:
        path.unlink()
        path.write_text("somebody else's")
        before = path.lstat()
        assert listener.owned_path is not None
        with pytest.raises(FileNotFoundError):
            _give_to_group(listener.owned_path, os.getegid(), 0o660)
        assert mode_of(path) == stat.S_IMODE(before.st_mode)


def test_bound_address_is_where_it_really_is(path: Path) -> None:
    with closing(listen_at(path)) as listener:
        assert listener.bound_address == PathAddress(str(path))
    with closing(open_listener(RandomAbstractAddress(), mode=0o700, replace=False)) as drawn:
        assert drawn.bound_address.format() == drawn.printable_address


def test_a_storm_leaves_few_connections_before_the_next_one(path: Path) -> None:
    somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(listen_at(path)), ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2_048)), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(min(somaxconn, 1_024) + 1):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            client.setblocking(False)
            client.connect(str(path))
        late = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        late.setblocking(False)
        with pytest.raises(BlockingIOError):
            late.connect(str(path))

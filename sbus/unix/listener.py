"""Listening sockets: opened at an address of any kind, and removed again.

The mode of a socket file decides who may connect, so the file must never have a wider mode than
requested, not for an instant. So the socket gets the mode before it is bound (bind(2) copies it to
the file, through the umask), and the file is not changed afterwards. A file for another group is
bound without the group's part of the mode, which it gets once it belongs to the group. Abstract
addresses have no mode. The file of an inherited socket is neither changed nor removed.

A socket file outlives a process that is killed; then it is *stale*, and `replace` removes it. The
kernel tells whether a socket is bound to a file. `replace` also removes an empty file of this
process's user, which a script may have made to reserve the path, and nothing else.
"""

import errno
import os
import socket
import stat

from sbus.errors import AddressError
from sbus.unix.address import (
    AbstractAddress,
    Address,
    FdAddress,
    PathAddress,
    RandomAbstractAddress,
    address_of,
)
from sbus.unix.fd_passing import refuse_descriptors
from sbus.unix.owned_path import OwnedPath
from sbus.unix.path_lock import path_lock
from sbus.unix.standard_streams import ERRORS

BindableAddress = PathAddress | AbstractAddress

BACKLOG_CONNECTIONS = 1024
"""Connections that wait to be accepted. A storm fills the queue, and a client that connects then
waits until all of it has been accepted or refused, which takes some 0.1 s. Enough for a host that
starts: at a full queue connect(2) waits, or fails at once with EAGAIN if it must not block."""


_KINDS = {
    socket.SOCK_SEQPACKET: "a UNIX socket for sequenced packets (AF_UNIX, SOCK_SEQPACKET)",
    socket.SOCK_STREAM: "a stream socket (SOCK_STREAM)",
}


class Listener:
    """A listening socket, and its file if this process made it."""

    def __init__(
        self,
        sock: socket.socket,
        printable_address: str,
        owned_path: OwnedPath | None,
        *,
        is_inherited: bool = False,
        replaced: str = "",
    ) -> None:
        self.socket = sock
        self.replaced = replaced
        """What was removed for it, if anything."""
        self.printable_address = printable_address
        """The address for people and clients; a random one after it was drawn."""
        self.owned_path = owned_path
        self.is_inherited = is_inherited
        """Whether another process may listen at the same socket."""

    @property
    def bound_address(self) -> Address:
        """The address that it is bound to, also if it was inherited."""
        return address_of(self.socket.getsockname())

    @property
    def is_abstract(self) -> bool:
        """Whether it is bound to an abstract name, which has no mode."""
        name = self.socket.getsockname()
        return isinstance(name, bytes) and name.startswith(b"\0")

    def take_file(self) -> OwnedPath | None:
        """Its file, which the caller removes from now on."""
        owned_path, self.owned_path = self.owned_path, None
        return owned_path

    def close(self) -> None:
        """Remove the socket's file if it is still its own, and close it. May be repeated."""
        try:
            # The file goes first: while the socket is open, no newer file can get its inode.
            if self.owned_path is not None:
                self.owned_path.remove()
        except OSError as error:
            raise _cannot("remove", self.printable_address, error) from error
        finally:
            self.owned_path = None
            self.socket.close()


def open_listener(
    address: Address,
    *,
    mode: int,
    replace: bool,
    group: int | None = None,
    kind: socket.SocketKind = socket.SOCK_SEQPACKET,
) -> Listener:
    """Listen at `address`; an AddressError says in one line why that is not possible.

    For a path, `mode` is the exact mode of the file, `group` its group if it is not this process's,
    and `replace` first removes what may be replaced. An inherited descriptor is moved to another
    number, unless it is a standard stream. Not for processes with threads, because the umask of the
    process changes for a moment.
    """
    if isinstance(address, FdAddress):
        listener = Listener(
            _take_inherited(address, kind), address.format(), None, is_inherited=True
        )
    else:
        if isinstance(address, RandomAbstractAddress):
            address = address.draw()
        listener = _open_bound(address, mode, replace, group, kind)
    try:
        listener.socket.listen(BACKLOG_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise _cannot("listen at", listener.printable_address, error) from error
    return listener


def _open_bound(
    address: BindableAddress,
    mode: int,
    replace: bool,
    group: int | None,
    kind: socket.SocketKind,
) -> Listener:
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        # Clients connect from `listen` on, and a connection keeps what the listener had then.
        refuse_descriptors(sock)
        replaced = _remove_old(address) if replace and isinstance(address, PathAddress) else ""
        owned_path = bind(sock, address, mode if group is None else mode & ~stat.S_IRWXG)
    except OSError as error:
        sock.close()
        raise _bind_error(address, error) from error
    except BaseException:
        sock.close()
        raise
    listener = Listener(sock, address.format(), owned_path, replaced=replaced)
    if owned_path is not None and group is not None:
        try:
            _give_to_group(owned_path, group, mode)
        except OSError as error:
            listener.close()
            raise AddressError(
                f"cannot give {address.format()} to group {group}: {error.strerror}; "
                "run sbusd as root or as a member of that group"
            ) from error
    return listener


def _give_to_group(owned_path: OwnedPath, group: int, mode: int) -> None:
    """Change the file through a descriptor, so that no other file at its path is changed."""
    fd = os.open(owned_path.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not owned_path.is_at(fd):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        file = f"/proc/self/fd/{fd}"
        os.chown(file, -1, group)
        os.chmod(file, mode)
    finally:
        os.close(fd)


def bind(sock: socket.socket, address: BindableAddress, mode: int) -> OwnedPath | None:
    """Bind a socket; the file that this makes, if any, has exactly this mode. Raises OSError."""
    # Both are needed: a directory with a default ACL ignores the umask.
    os.fchmod(sock.fileno(), mode)
    umask = os.umask(0o777 & ~mode)
    try:
        sock.bind(address.sockaddr())
        return OwnedPath.claim(address.path) if isinstance(address, PathAddress) else None
    finally:
        os.umask(umask)


def _bind_error(address: BindableAddress, error: OSError) -> AddressError:
    name = address.format()
    if error.errno != errno.EADDRINUSE:
        return _cannot("bind", name, error)
    if isinstance(address, AbstractAddress):
        return _in_use(name)
    try:
        if _is_empty_file(address.path):
            return AddressError(f"{name} exists and is an empty file: use -r to replace it")
        if _is_no_socket(address.path):
            return AddressError(
                f"{name} exists and is not a socket: remove it, or name another address"
            )
        if is_bound(address.path):
            return _in_use(name)
    except OSError as unknown:
        return AddressError(f"{name} exists, and cannot be tried: {unknown.strerror}")
    return AddressError(f"{name} exists, but no process listens there: use -r to replace it")


def _in_use(name: str) -> AddressError:
    return AddressError(f"{name} is in use: another process listens there")


def _is_no_socket(path: str) -> bool:
    """Whether something else than a socket is there. Raises OSError."""
    return not stat.S_ISSOCK(os.lstat(path).st_mode)


def is_bound(path: str) -> bool:
    """Whether a socket of any process is bound to this socket file. Raises OSError.

    No socket of a bus accepts datagrams. So this neither makes a connection, which the bus would
    notice, nor does it depend on whether the bus listens yet or has a full queue.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(os.fsencode(path))
        except ConnectionRefusedError:
            return False
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:  # a socket of another type
                raise
    return True


def _remove_old(address: PathAddress) -> str:
    """Remove a stale socket or an empty file; which there was. Raises AddressError for any other
    file."""
    path, name = address.path, address.format()
    try:
        if not os.path.lexists(path):
            return ""
        with path_lock(path):
            if _is_empty_file(path):
                removed = f"empty file {name}"
            elif _is_no_socket(path):
                raise AddressError(
                    f"cannot replace {name}: it is not a socket, nor an empty file of user "
                    f"{os.geteuid()}: remove it, or name another address"
                )
            elif is_bound(path):
                raise AddressError(f"cannot replace {name}: another process listens there")
            else:
                removed = f"socket {name}, which a process left behind"
            os.unlink(path)
    except FileNotFoundError:  # another process has just removed it
        return ""
    except OSError as error:
        raise _cannot("replace", name, error) from error
    return removed


def _is_empty_file(path: str) -> bool:
    """Whether this is an empty regular file of this process's user. Raises OSError."""
    found = os.lstat(path)
    is_own = found.st_uid == os.geteuid()
    return stat.S_ISREG(found.st_mode) and is_own and found.st_size == 0


def _take_inherited(address: FdAddress, kind: socket.SocketKind) -> socket.socket:
    name, number = address.format(), address.number
    try:
        is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError as error:
        raise _cannot("use", name, error) from error
    if not is_socket:
        raise AddressError(f"cannot use {name}: it is not a socket")
    sock = socket.socket(fileno=os.dup(number))
    fault = _fault_of_inherited(sock, kind)
    if fault is not None:
        sock.close()
        raise AddressError(f"cannot use {name}: {fault}")
    if number > ERRORS:
        os.close(number)
    return sock


def _fault_of_inherited(sock: socket.socket, kind: socket.SocketKind) -> str | None:
    """Why this socket cannot listen for clients; None when it can."""
    if sock.type != kind or (kind == socket.SOCK_SEQPACKET and sock.family != socket.AF_UNIX):
        return f"it is not {_KINDS[kind]}"
    if not sock.getsockname():
        return "it is not bound to an address"
    try:
        sock.getpeername()
    except OSError:  # ENOTCONN, as expected
        return None
    return "it is a connection, not a listening socket"


def _cannot(verb: str, address: str, error: OSError) -> AddressError:
    return AddressError(f"cannot {verb} {address}: {error.strerror}")

"""Planted faults of the front: upgrades, descriptors, and the service manager."""

from tests.mutation.planted import Bug

_WORKER = "tests/unit/broker/worker"
_UPGRADE = "tests/broker/test_upgrade.py"
_FRONT = "tests/unit/broker/front"
_DELIVERY = "tests/unit/broker/delivery"

BUGS = (
    Bug(
        "a copy of a socket makes all copies wait",
        "dup_socket",
        "socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))",
        "sock.dup()",
        found_by=["tests/broker/test_no_call_waits.py"],
    ),
    Bug(
        "a send waits for a socket without O_NONBLOCK",
        "TimedSocket.send",
        "self._send(packet, MSG_DONTWAIT)",
        "self._send(packet, 0)",
        found_by=[f"{_DELIVERY}/test_send_times.py", "tests/broker/test_no_call_waits.py"],
    ),
    Bug(
        "a receipt that waits is lost in an upgrade",
        "SnapshotRestorer._restore",
        "self._keep_receipts(session)",
        "",
        found_by=["tests/protocol/21-survival-of-backlogs.t"],
    ),
    Bug(
        "a program that does not take over changes the listener",
        "Acceptor.__init__",
        "self.apply_settings(settings)",
        "self.apply_settings(settings)\nself.configure_listener()",
        found_by=[f"{_UPGRADE}::test_a_program_that_does_not_take_over_changes_nothing"],
    ),
    Bug(
        "an upgrade begins during a reload",
        "Upgrader.attempt",
        "self._changes",
        "False",
        found_by=[f"{_FRONT}/test_upgrade.py"],
    ),
    Bug(
        "a link sends another file than was queued",
        "WorkerLink.send",
        (
            "if self._unsent:\n"
            "    self._unsent.append((data, _copy(fd)))\n"
            "elif not self._try_to_send(data, fd):\n"
            "    self._unsent.append((data, _copy(fd)))\n"
            "    self._nursery.start_soon(self._flush)"
        ),
        (
            "if self._unsent:\n"
            "    self._unsent.append((data, fd))\n"
            "elif not self._try_to_send(data, fd):\n"
            "    self._unsent.append((data, fd))\n"
            "    self._nursery.start_soon(self._flush)"
        ),
        found_by=["tests/unit/broker/ipc/test_worker_link.py"],
    ),
    Bug(
        "an unforeseen error of a hand-over leaves workers frozen",
        "HandOver.run",
        "BaseException",
        "UpgradeFailed",
        found_by=[f"{_FRONT}/test_hand_over.py"],
    ),
    Bug(
        "a fault of a client is forgotten in an upgrade",
        "SnapshotWriter._snapshot",
        "None if fault is None else (fault.code, fault.text)",
        "None",
        found_by=[f"{_WORKER}/test_snapshots.py"],
    ),
    Bug(
        "the files of a bus that fails after the commit stay",
        "Upgrader.attempt",
        "self._estate.files.take_back()",
        "",
        found_by=[f"{_FRONT}/test_upgrade.py"],
    ),
    Bug(
        "a kernel without room for descriptors ends the front",
        "send_borrowing_fds",
        "error.errno not in OUT_OF_RESOURCES",
        "error.errno != 11",
        found_by=["tests/unit/broker/ipc", "tests/unit/unix/test_fd_passing.py", _FRONT],
    ),
    Bug(
        "a successor is not waited for from the death on",
        "SupervisedWorker.note_exit",
        "self.has_started, self.is_succeeding = False, True",
        "self.has_started = False",
        found_by=[f"{_FRONT}/test_supervisor.py"],
    ),
    Bug(
        "a full disk ends a bus that has taken over",
        "BusFiles.take_over",
        "os.truncate(fd, 0)\nreturn os.strerror(error.errno or 0)",
        "raise",
        found_by=["tests/unit/unix/test_bus_files.py"],
    ),
    Bug(
        "a busy service manager makes the front wait",
        "Notifier._send",
        "self._try_to_send(data, socket.MSG_DONTWAIT)",
        "self._try_to_send(data, 0)",
        found_by=["tests/unit/unix/test_notify.py"],
    ),
)

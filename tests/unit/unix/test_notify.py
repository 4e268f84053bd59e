"""Messages to a service manager, as sd_notify(3) has them."""

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sbus.errors import SbusError
from sbus.unix.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and what `NOTIFY_SOCKET` is then."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0"))
        sock.settimeout(60)
        yield sock, name


def never(text: str) -> None:
    raise AssertionError(text)


def lines(sock: socket.socket) -> list[str]:
    return sock.recv(10_000).decode().split("\n")


def close(notifier: Notifier) -> None:
    if notifier.sock is not None:
        notifier.sock.close()


def test_a_text_of_several_lines_is_one_assignment(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier = Notifier.of_environment(never, {"NOTIFY_SOCKET": name})
    notifier.status("two\nlines")
    assert lines(sock) == ["STATUS=two lines"]
    close(notifier)


def test_nothing_is_sent_once_another_process_is_the_main_one(
    manager: tuple[socket.socket, str],
) -> None:
    sock, name = manager
    notifier = Notifier.of_environment(never, {"NOTIFY_SOCKET": name})
    notifier.hand_over(4711)
    assert lines(sock) == ["MAINPID=4711"]
    notifier.ready("serves with the configuration that was read again")
    notifier.alive()
    close(notifier)
    sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        sock.recv(1)


def test_without_a_service_manager_nothing_is_sent() -> None:
    notifier = Notifier.of_environment(never, {"WATCHDOG_USEC": "1000000"})
    assert notifier.sock is None
    assert notifier.watchdog_seconds is None
    notifier.ready("serves")


def test_the_variables_are_removed_and_no_others() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": "1",
        "HOME": "/",
    }
    close(Notifier.of_environment(never, environment))
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2500000"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid())}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getppid())}, None),
    ],
)
def test_the_watchdog_is_for_the_process_that_its_pid_names(
    variables: dict[str, str], seconds: float | None
) -> None:
    notifier = Notifier.of_environment(never, {"NOTIFY_SOCKET": "/run/notify", **variables})
    assert notifier.watchdog_seconds == seconds
    close(notifier)


@pytest.mark.parametrize("target", ["relative", "vsock:2:1234", "/" + 108 * "x"])
def test_a_socket_of_another_kind_is_an_error(target: str) -> None:
    with pytest.raises(SbusError, match="NOTIFY_SOCKET"):
        Notifier.of_environment(never, {"NOTIFY_SOCKET": target})


@pytest.mark.parametrize("time_given", ["", "0", "-5", "soon"])
def test_a_watchdog_without_a_time_is_an_error(time_given: str) -> None:
    variables = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": time_given}
    with pytest.raises(SbusError, match="WATCHDOG_USEC"):
        Notifier.of_environment(never, variables)


def test_an_undeliverable_notification_is_reported_once_until_that_changes(tmp_path: Path) -> None:
    reports: list[str] = []
    name = str(tmp_path / "notify")
    notifier = Notifier.of_environment(reports.append, {"NOTIFY_SOCKET": name})
    notifier.alive()
    notifier.alive()
    assert reports == ["cannot tell the service manager WATCHDOG=1: No such file or directory"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name)
        notifier.alive()
        assert lines(sock) == ["WATCHDOG=1"]
    notifier.alive()
    assert len(reports) == 2
    assert "Connection refused" in reports[1]
    close(notifier)


def fill(name: str) -> int:
    """Send as much as a manager has room for, from whichever socket; how many datagrams."""
    count, before = 0, -1
    while count > before:
        before = count
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with sock, suppress(BlockingIOError):
            while True:
                sock.sendto(b"x", socket.MSG_DONTWAIT, name)
                count += 1
    return count


def test_what_a_busy_manager_has_no_room_for_is_sent_when_it_has(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name)
        sock.settimeout(60)
        notifier = Notifier.of_environment(never, {"NOTIFY_SOCKET": name})
        count = fill(name)
        notifier.ready("serves")  # the manager has read nothing, and does not while this lasts
        notifier.status("still serves")
        assert [sock.recv(100) for _ in range(count)] == count * [b"x"]
        assert lines(sock)[0] == "READY=1"
        assert lines(sock) == ["STATUS=still serves"]
        notifier.hand_over(4711)
        assert lines(sock) == ["MAINPID=4711"]
    close(notifier)


def test_a_manager_that_does_not_read_does_not_block_us(tmp_path: Path) -> None:
    reports: list[str] = []
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name)
        notifier = Notifier.of_environment(reports.append, {"NOTIFY_SOCKET": name})
        begin = time.monotonic()
        while not reports:
            notifier.alive()
            assert time.monotonic() - begin < 60
    assert "WATCHDOG=1: Resource temporarily unavailable" in reports[0]
    close(notifier)


def test_a_stored_descriptor_is_removed_by_its_name(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier = Notifier.of_environment(never, {"NOTIFY_SOCKET": name, "FDSTORE": "10"})
    notifier.remove_stored("@1")
    assert lines(sock) == ["FDSTOREREMOVE=1", "FDNAME=@1"]
    close(notifier)


def test_a_busy_manager_stores_nothing_and_nobody_waits(manager: tuple[socket.socket, str]) -> None:
    _, name = manager
    notifier = Notifier.of_environment(never, {"NOTIFY_SOCKET": name, "FDSTORE": "10"})
    began_at = time.monotonic()
    while notifier.store("@1", 2):
        pass
    assert time.monotonic() - began_at < 60
    close(notifier)


@pytest.mark.parametrize("environment", [{}, {"FDSTORE": "10"}, {"NOTIFY_SOCKET": "@there"}])
def test_without_a_store_there_is_room_for_nothing(environment: dict[str, str]) -> None:
    notifier = Notifier.of_environment(never, environment)
    assert notifier.stored_max == 0
    close(notifier)


@pytest.mark.parametrize("value", ["", "-1", "many", "1.5"])
def test_an_invalid_size_of_the_store_is_an_error(value: str) -> None:
    with pytest.raises(SbusError, match="FDSTORE="):
        Notifier.of_environment(never, {"NOTIFY_SOCKET": "@there", "FDSTORE": value})

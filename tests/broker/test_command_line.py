"""A bus from its start to its end, on every kind of address and with every option."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sbus.unix.address import admin_address, parse_address
from tests.support.admin import Admin
from tests.support.bus import (
    RUN_AS_SELF,
    SBUSD,
    STOP_SECONDS_MAX,
    await_file,
    bus_of,
    running_bus,
    sbusd_environment,
    stop,
)
from tests.support.raw_client import RawClient
from tests.support.threads import wait_until

SCRIPT = Path(sys.executable).with_name("sbusd")
COMMANDS = [
    pytest.param(SBUSD, id="module"),
    pytest.param(
        (str(SCRIPT), *RUN_AS_SELF),
        id="script",
        marks=pytest.mark.skipif(not SCRIPT.exists(), reason="the console script is not installed"),
    ),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bus.socket")


def live(client: RawClient) -> None:
    """A client's life: what it subscribed to, all of it, in order, and nothing else."""
    client.sub(b"test/")
    client.sub(b"discard")
    client.unsub(b"discard")
    client.pub(b"discard", b"")
    for number in range(100):
        client.pub(b"test/%d" % number, b"payload")
    for number in range(100):
        assert client.receive() == b"MSG test/%d\0payload" % number
    client.sock.settimeout(None)  # else Python waits, whatever the flag
    with pytest.raises(BlockingIOError) as refused:
        client.sock.recv(1, socket.MSG_DONTWAIT)
    assert refused.value.errno == errno.EAGAIN


def leave_socket(path: str) -> None:
    """As a bus that was killed leaves its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_over:
        left_over.bind(path)


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


# -- whole lives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_life_at_a_random_abstract_address(tmp_path: Path, command: tuple[str, ...]) -> None:
    with bus_of(tmp_path, "-fa/dev/unix/abstract", "--workers=2", command=command) as bus:
        digits = bus.address.removeprefix("/dev/unix/abstract/")
        assert len(digits) == 216
        assert digits.startswith("00")
        assert set(digits) <= set("0123456789abcdef")
        with bus.connect() as client:
            live(client)
        with Admin(admin_address(parse_address(bus.address)).sockaddr()) as admin:
            assert admin.ask("version")["pid"] == bus.process.pid
        stop(bus, signal.SIGINT)
    assert bus.stderr_text() == ""


def test_life_on_a_socket_that_is_passed_down(tmp_path: Path, path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed:
        passed.bind(path)
        os.chmod(path, 0o750)
        number = passed.fileno()
        arguments = ("-fgora", f"/dev/fd/{number}", "--workers=2")
        with bus_of(tmp_path, *arguments, address=path, pass_fds=[number]) as bus:
            passed.close()
            with bus.connect() as client:
                live(client)
            with Admin(f"{path}.admin") as admin:
                assert admin.ask("version")["pid"] == bus.process.pid
            stop(bus, signal.SIGINT)
    assert not os.path.lexists(f"{path}.admin")
    assert mode_of(path) == 0o750, "a socket that was passed down is not this bus's to change"
    warnings = bus.stderr_text().splitlines()
    assert len(warnings) == 2
    for option, warning in zip(("-g", "-o"), warnings, strict=True):
        assert warning.startswith(f"sbusd: warning: {option} is ignored")


def test_life_at_a_path_over_a_left_over_socket(tmp_path: Path, path: str) -> None:
    """By the long names of the options; in the foreground there is no pidfile."""
    leave_socket(path)
    pidfile = tmp_path / "pid"
    options = ["--foreground", "--address", path, "--pidfile", str(pidfile), "--exit-when-empty"]
    options += ["--replace", "--group", "--others", "--user", "0", "--dialect=slash", "--workers=2"]
    with bus_of(tmp_path, *options, "--limit=log_bytes=16777216", address=path) as bus:
        assert mode_of(path) == 0o777
        assert not pidfile.exists()
        with bus.connect() as client:
            live(client)
        assert bus.process.wait(STOP_SECONDS_MAX) == 0
    assert not os.path.lexists(path)
    report = f"sbusd: replaced socket {path}, which a process left behind\n"
    assert bus.stderr_text() == report


# -- the ends of a bus -----------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_at_any_moment_after_bind_leaves_nothing_behind(
    tmp_path: Path, path: str, signum: signal.Signals
) -> None:
    """The socket's file is there long before the broker's handlers are."""
    process = subprocess.Popen(
        [*SBUSD, "-fa", path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=sbusd_environment(),
    )
    try:
        await_file(path, process)
        process.send_signal(signum)
        assert process.communicate(timeout=STOP_SECONDS_MAX) == (b"", b"")
        assert process.returncode == 0
    finally:
        process.kill()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_signal_to_every_process_ends_it_in_order(tmp_path: Path, signum: signal.Signals) -> None:
    """As with ^C, and as when a terminal is closed."""
    with running_bus(tmp_path, command=SBUSD) as bus:
        with bus.connect() as client:
            client.whoami()
        for pid in reversed(bus.pids()):  # the first one ends the others
            os.kill(pid, signum)
        assert bus.process.wait(STOP_SECONDS_MAX) == 0
        assert not os.path.lexists(bus.address)
    assert bus.stderr_text() == ""


# -- readiness -------------------------------------------------------------------------------------


def first_client(path: str) -> RawClient:
    """A client, as soon as the bus listens: the socket's file is there earlier."""
    clients: list[RawClient] = []

    def is_listening() -> bool:
        with suppress(ConnectionRefusedError):
            clients.append(RawClient(path))
        return bool(clients)

    wait_until(is_listening, "the bus listens")
    return clients[0]


def test_starts_without_any_standard_stream(path: str) -> None:
    """The numbers 0 to 2 do not become the bus's own sockets, where errors would be printed."""
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *SBUSD, "-cfa", path, "--workers=1"],
        env=sbusd_environment(),
    ) as process:
        try:
            await_file(path, process)
            with first_client(path) as client:
                live(client)
            assert process.wait(STOP_SECONDS_MAX) == 0
        finally:
            process.kill()

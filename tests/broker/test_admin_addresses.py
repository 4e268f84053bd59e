"""Where the admin socket of a bus is, who may use it, and that nothing is left of it."""

import os
import socket
import stat
from pathlib import Path

from tests.support.admin import Admin
from tests.support.bus import (
    SBUSD,
    bus_of,
    refusal,
    running_bus,
    stop,
)
from tests.support.users import STRANGER, as_user, directory_for_everybody, needs_root


def mode_of(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def is_administered_at(address: str | bytes) -> bool:
    with Admin(address) as admin:
        return bool(admin.ask("version")["pid"])


def failure(*arguments: str) -> str:
    """What sbusd says when it cannot start."""
    return refusal(*SBUSD, "-f", *arguments)


def test_by_default_it_is_beside_the_bus_and_only_for_its_owner(tmp_path: Path) -> None:
    """`-g` and `-o` open the bus, not its administration."""
    with running_bus(tmp_path, "-go") as bus:
        assert mode_of(f"{bus.address}.admin") == 0o600
        assert is_administered_at(f"{bus.address}.admin")


def test_an_option_moves_it(tmp_path: Path) -> None:
    address = tmp_path / "elsewhere"
    with running_bus(tmp_path, "--admin-address", str(address)) as bus:
        assert is_administered_at(str(address))
        assert not os.path.lexists(f"{bus.address}.admin")
    assert not os.path.lexists(address)


@needs_root
def test_only_members_of_its_group_may_use_it() -> None:
    other = STRANGER - 1
    with directory_for_everybody() as directory:
        options = ("-o", "--admin-group", str(STRANGER))
        with running_bus(directory, *options, workers=1) as bus:
            path = f"{bus.address}.admin"
            assert (mode_of(path), os.lstat(path).st_gid) == (0o660, STRANGER)

            def works() -> bool:
                try:
                    return is_administered_at(path)
                except PermissionError:
                    return False

            assert as_user(works, uid=other, gid=STRANGER)
            assert as_user(works, uid=other, gid=other, groups=[STRANGER])
            assert not as_user(works, uid=other, gid=other)


def test_a_passed_bus_without_a_writable_directory_has_none(tmp_path: Path) -> None:
    """Only where nobody asked for it."""
    directory = tmp_path / "gone"
    directory.mkdir()
    path = directory / "passed"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as passed:
        passed.bind(str(path))
        path.rename(tmp_path / "passed")
        directory.rmdir()
        number = passed.fileno()
        arguments = ("-fa", f"/dev/fd/{number}", "--workers=1")
        moved = str(tmp_path / "passed")
        with bus_of(tmp_path, *arguments, address=moved, pass_fds=[number]) as bus:
            with bus.connect() as client:
                client.whoami()
            stop(bus)
        assert bus.stderr_text() == (
            f"sbusd: warning: no admin socket: cannot bind {path}.admin: No such file or "
            "directory; say where with --admin-address, or none\n"
        )
    text = failure("-a", str(tmp_path / "new"), "--admin-address", f"{path}.admin")
    assert "cannot bind" in text
    assert not os.path.lexists(tmp_path / "new")


def test_a_bus_with_too_long_a_path_has_none(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    path += (107 - len(path)) * "x"
    with bus_of(tmp_path, "-fa", path, "--workers=1", address=path) as bus:
        with bus.connect() as client:
            client.whoami()
        stop(bus)
    assert "warning: no admin socket: " in bus.stderr_text()

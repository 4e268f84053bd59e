"""The units, checked with systemd's own tools, and settings that they must not have."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from sbus.broker.config.file import parse_config
from sbus.limits import Limits
from sbus.unix.address import PathAddress, admin_address
from sbus.unix.default_address import SYSTEM_ADDRESS
from tests.deploy.booted import UNITS
from tests.support.needs import needs_tool

EXPOSURE_MAX = 1.5
SYSTEM = sorted(path.name for path in UNITS.glob("*.service"))
NEWER_SETTING = re.compile(
    rb"^.*: Unknown key (name )?'(AcceptFileDescriptors|RestartSteps|RestartMaxDelaySec)' in "
    rb"section .(Socket|Service)., ignoring\.\n",
    re.MULTILINE,
)
"""A warning of systemd before version 254 or 258."""
needs_systemd = needs_tool("systemd-analyze", "systemd")


def settings(unit: str) -> list[tuple[str, str]]:
    lines = (UNITS / unit).read_text().splitlines()
    return [(name, value) for line in lines for name, _, value in [line.partition("=")] if value]


@needs_systemd
@pytest.mark.parametrize("unit", SYSTEM)
def test_exposure_is_small(unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNITS / unit)],
        capture_output=True,
        check=True,
    )
    found = re.search(rf"exposure level for {re.escape(unit)}: ([\d.]+)", done.stdout.decode())
    assert found
    print(f"{unit}: exposure {found[1]}")
    assert float(found[1]) <= EXPOSURE_MAX


@needs_systemd
@pytest.mark.parametrize("folder", [".", "user"])
def test_systemd_finds_no_mistake_in_the_units(tmp_path: Path, folder: str) -> None:
    """Verified with programs of the test's in place of those that a package installs."""
    for name in ("sbusd", "sbusctl", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    units = []
    for path in sorted((UNITS / folder).glob("*.s*")):
        if path.suffix in (".service", ".socket"):
            units.append(tmp_path / path.name)
            units[-1].write_text(path.read_text().replace("/usr/bin/", f"{tmp_path}/"))
    assert len(units) >= 3
    user = [] if folder == "." else ["--user"]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *user, *units],
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert NEWER_SETTING.sub(b"", done.stderr) == b""


@pytest.mark.parametrize("unit", ["sbusd.service", "user/sbusd.service"])
def test_no_setting_hides_the_clients_identities(unit: str) -> None:
    names = {name for name, _ in settings(unit)}
    falsifying = {"PrivateUsers", "PrivatePIDs", "ProtectProc", "ProcSubset", "DynamicUser"}
    assert not names & falsifying
    # A user's own manager has no other way to do these than a user namespace.
    if unit.startswith("user/"):
        assert not [name for name in names if name.startswith(("Private", "Protect"))]


@pytest.mark.parametrize("unit", ["sbusd.service", "user/sbusd.service"])
def test_no_number_of_failed_starts_ends_the_sockets(unit: str) -> None:
    """systemd gives up sockets whose service has reached its limit of starts."""
    assert ("StartLimitIntervalSec", "0") in settings(unit)
    assert "RestartMaxDelaySec" in dict(settings(unit))


def test_the_bus_starts_behind_the_directory_of_users() -> None:
    assert ("After", "nss-user-lookup.target") in settings("sbusd.service")


def test_sockets_are_where_clients_look() -> None:
    admin = admin_address(PathAddress(SYSTEM_ADDRESS)).format()
    assert ("ListenSequentialPacket", SYSTEM_ADDRESS) in settings("sbusd.socket")
    assert ("ListenSequentialPacket", admin) in settings("sbusd-admin.socket")
    for folder in ("", "user/"):
        assert ("FileDescriptorName", "bus") in settings(f"{folder}sbusd.socket")
        assert ("FileDescriptorName", "admin") in settings(f"{folder}sbusd-admin.socket")
        for unit in ("sbusd.socket", "sbusd-admin.socket"):
            assert ("AcceptFileDescriptors", "no") in settings(f"{folder}{unit}")


def test_example_configuration_changes_nothing_until_its_examples_are_used() -> None:
    """A line of code in a comment has no space behind the `#`."""
    text = (UNITS / "sbus.toml").read_text()
    assert tomllib.loads(text) == {"bus": {}, "limits": {}}
    used = re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE)
    assert parse_config(used.encode()) != parse_config(text.encode())
    assert {"bus", "limits", "users", "rules"} == tomllib.loads(used).keys()


def test_the_memory_of_the_service_is_more_than_its_limits_add_up_to() -> None:
    """Messages: in backlogs, read and waiting, and in socket buffers."""
    (memory,) = [value for name, value in settings("sbusd.service") if name == "MemoryMax"]
    assert memory.endswith("G")
    limits = Limits()
    of_worker = (
        limits.bus_subscription_bytes_max
        + limits.route_cache_bytes_max
        + limits.rule_cache_bytes_max
    )
    shared = limits.log_bytes + 2 * limits.table_bytes
    needed = 3 * limits.bus_backlog_bytes_max + shared + 16 * of_worker
    assert needed < int(memory[:-1]) * 2**30 < 2 * needed

"""systemd as the first process of its own namespaces, with the units of this project.

`boot` starts it on the host's files, but with separate directories for what it writes, so that
nothing is left of it, and a program of the test runs beside it as root. `SOURCES`: sysusers.conf
makes user and group there, the units and /etc/sbus/sbus.toml are as they are installed, and
drop-ins change only the paths of the programs, to this interpreter and these sources. `PACKAGES`:
nothing is installed, but Debian packages can be, because /usr and /var are overlaid.

Needs root, the right to make namespaces and mounts, and systemd; `why_not` says what is missing.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.needs import without

PROJECT = Path(__file__).resolve().parents[2]
UNITS = PROJECT / "deploy/systemd"
BOOT_SECONDS_MAX = 400.0
"""With the program of the test, which takes some 30 s on an idle machine."""
SYSTEMD = "/usr/lib/systemd/systemd"
PRIVATE_MOUNTS = ("unshare", "-m", "--propagation=private")

ENTER = r"""
set -eu
mount -t cgroup2 none /sys/fs/cgroup
mkdir "/sys/fs/cgroup/$CONTROL_GROUP"
echo 0 >"/sys/fs/cgroup/$CONTROL_GROUP/cgroup.procs"
exec unshare --kill-child -pfmC --propagation=private --mount-proc sh -c "$SETUP"
"""
"""Into a control group of its own, which is all that systemd sees of them, and namespaces."""

LEAVE = r"""
mount -t cgroup2 none /sys/fs/cgroup
group=/sys/fs/cgroup/$CONTROL_GROUP
while [ -d "$group" ]; do
    echo 1 >"$group/cgroup.kill"
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.05
done
"""

SETUP = r"""
set -eu
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/t/python /run/t/site /run/t/source /run/t/packages /run/t/etc
mkdir -p /run/systemd/system /run/lock
mount --bind "$BASE" /run/t/python
mount --bind "$SITE" /run/t/site
mount --bind "$SOURCE" /run/t/source
mount --bind "$PACKAGES" /run/t/packages
umount /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
touch /run/t/console
mount --bind /run/t/console /dev/console
cp -a /etc/. /run/t/etc
mount --bind /run/t/etc /etc
for unit in sbusd.socket sbusd-admin.socket sbusd.service sbus-metrics.socket sbus-metrics.service
do
    mkdir /run/systemd/system/$unit.d
    printf '%s\n' '[Unit]' 'DefaultDependencies=no' >/run/systemd/system/$unit.d/test.conf
done
for unit in sbusd.service sbus-metrics.service; do
    printf '%s\n' '[Service]' 'StandardError=append:/run/t/stderr' \
        >/run/systemd/system/$unit.d/errors.conf
done
eval "$INSTALLATION"
printf '%s\n' '[Unit]' 'DefaultDependencies=no' 'Wants=sbusd.socket' \
    >/run/systemd/system/test.target
( export PYTHONPATH=/run/t/source:/run/t/site LD_LIBRARY_PATH=/run/t/python/lib
  /run/t/python/bin/python3 -m "$PROGRAM" || {
      systemctl show -p Id,ActiveState,Result,StatusText sbusd.service sbusd*.socket
      cat /run/t/stderr /run/t/console /run/t/*.log || true
  } >&2
  echo ) </dev/null &
exec env -i container=test PATH="$PATH" "$SYSTEMD" --system --unit=test.target \
    --log-target=console --show-status=no </dev/null >/dev/null 2>&1
"""


SOURCES = r"""
units=/run/t/source/deploy/systemd
mount -t tmpfs -o mode=755 tmpfs /var/lib
systemd-sysusers "$units/sysusers.conf" 2>/run/t/sysusers.log
systemd-tmpfiles --create "$units/tmpfiles.conf" 2>/run/t/tmpfiles.log
mkdir -p /etc/sbus
cp "$units/sbus.toml" /etc/sbus
cp "$units"/*.socket "$units"/*.service /run/systemd/system
for name in sbusd sbusctl; do
    printf '%s\n' '#!/bin/sh' 'export LD_LIBRARY_PATH=/run/t/python/lib' \
        'export PYTHONPATH=/run/t/source:/run/t/site PYTHONDONTWRITEBYTECODE=1' \
        "exec /run/t/python/bin/python3 -m sbus.cli.$name \"\$@\"" \
        >/run/t/$name
    chmod 755 /run/t/$name
done
printf '%s\n' '[Service]' "$BUS_EXEC" >/run/systemd/system/sbusd.service.d/exec.conf
printf '%s\n' '[Service]' "$METRICS_EXEC" >/run/systemd/system/sbus-metrics.service.d/exec.conf
/run/t/sbusctl --version >/dev/null
"""
PACKAGES = r"""
for directory in usr var; do
    mkdir -p /run/t/$directory.new /run/t/$directory.work
    mount -t overlay overlay /$directory -o \
        "lowerdir=/$directory,upperdir=/run/t/$directory.new,workdir=/run/t/$directory.work"
done
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
rm -f /usr/sbin/policy-rc.d
"""


@cache
def why_not() -> str | None:
    """The reason why this host cannot boot it; None if it can."""
    if os.geteuid() != 0:
        return "only root can boot a systemd"
    if not Path(SYSTEMD).exists() or shutil.which("unshare") is None:
        return without("systemd or unshare", "systemd", "util-linux")
    variables = {**_control_group(), "SETUP": "mount -t tmpfs tmpfs /run"}
    tried = subprocess.run(
        [*PRIVATE_MOUNTS, "sh", "-c", ENTER],
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
        timeout=BOOT_SECONDS_MAX,
    )
    _leave(variables)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode()!r}"


@cache
def why_not_packages() -> str | None:
    """The reason why packages that are built for this Python cannot be installed there."""
    if shutil.which("dpkg") is None:
        return without("dpkg", "dpkg")
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}."
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "python3"], capture_output=True, check=False
    )
    if not asked.stdout.decode().startswith(wanted):
        return f"the tests run on another Python than the system's, {wanted}x"
    return None


def _control_group() -> dict[str, str]:
    return {"CONTROL_GROUP": f"sbus-test-{os.getpid()}"}


def _leave(variables: dict[str, str]) -> None:
    """End all processes that are left, and remove their control groups."""
    subprocess.run(
        [*PRIVATE_MOUNTS, "sh", "-c", LEAVE],
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
        timeout=BOOT_SECONDS_MAX,
    )


def exec_lines(unit: str) -> str:
    """What a service runs, from where the programs are here."""
    lines = (UNITS / unit).read_text().splitlines()
    commands = [line.split("=", 1) for line in lines if line.startswith("Exec")]
    assert all(command.startswith("/usr/bin/") for _, command in commands)
    return "\n".join(
        f"{name}=\n{name}={command.replace('/usr/bin/', '/run/t/')}" for name, command in commands
    )


def boot(program: str, packages: Path | None = None) -> Any:
    """Boot, and run `program`, a module, beside it; what it printed, as JSON, is returned. With
    `packages`, a directory, nothing is installed there, and this is at /run/t/packages."""
    process = subprocess.Popen(
        [*PRIVATE_MOUNTS, "sh", "-c", ENTER],
        env={
            "PATH": os.environ["PATH"],
            **_control_group(),
            "SETUP": SETUP,
            "INSTALLATION": PACKAGES if packages else SOURCES,
            "PACKAGES": str(packages or UNITS),
            "BASE": sys.base_prefix,
            "SITE": sysconfig.get_path("purelib"),
            "SOURCE": str(PROJECT),
            "PROGRAM": program,
            "BUS_EXEC": exec_lines("sbusd.service"),
            "METRICS_EXEC": exec_lines("sbus-metrics.service"),
            "SYSTEMD": SYSTEMD,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        done = select.select([process.stdout], [], [], BOOT_SECONDS_MAX)[0]
        printed = process.stdout.readline() if done else b""
    finally:
        process.kill()
        _leave(_control_group())
        _, errors = process.communicate()
    assert printed.strip(), errors.decode(errors="replace")
    return json.loads(printed)

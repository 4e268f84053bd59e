"""The Debian package: built, unpacked somewhere, and run from there as it is; and installed over
another version under a booted systemd.

Built for the Python that runs the tests, so that any host which has dpkg can do it.
"""

import os
import py_compile
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import booted, package_probe
from tests.deploy.store_probe import CLIENTS
from tests.deploy.test_descriptor_store import NOTHING
from tests.support.bus import bus_of
from tests.support.needs import needs_tool
from tests.support.raw_client import RawClient

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.base_prefix) / "bin/python3"
SITE = Path(sysconfig.get_path("purelib"))
BUILD_SECONDS_MAX = 600.0
OLD, NEW = "0.1.0", "0.1.1"
BROKEN = "import sys\nassert not sys.argv[0].endswith('sbusd')\n"
GOES_ON = "the bus goes on with the version that ran before"
UNIT_CHANGED = "sbusd.service has changed"
WAIT_SECONDS_MAX = 60.0
"""Of which the pause is a small part: dpkg and the new program keep both processors busy."""
pytestmark = needs_tool("dpkg-deb", "dpkg")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("package")
    subprocess.run(
        [PROJECT / "deploy/debian/build", directory],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.DEVNULL,
        timeout=BUILD_SECONDS_MAX,
        check=True,
    )
    (built,) = directory.glob("sbus_*.deb")
    return built


@pytest.fixture(scope="module")
def root(package: Path) -> Path:
    """The directory where it is unpacked, which is not its own."""
    unpacked = package.parent / "unpacked"
    subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
    return unpacked


def field(package: Path, name: str) -> str:
    done = subprocess.run(["dpkg-deb", "-f", package, name], capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_it_says_what_it_is_and_needs(package: Path) -> None:
    version = field(package, "Version")
    assert re.fullmatch(r"\d+\.\d+\.\d+(~dev\d+)?", version)
    # Packages were 0.1.0 before they had versions that grow.
    subprocess.run(["dpkg", "--compare-versions", version, "gt", "0.1.0"], check=True)
    assert package.name == f"sbus_{version}_{field(package, 'Architecture')}.deb"
    major, minor = sys.version_info[:2]
    needs = field(package, "Depends")
    bounds = re.search(rf"python3 \(>= {major}\.{minor}\), python3 \(<< {major}\.(\d+)\)", needs)
    assert bounds
    assert int(bounds[1]) > minor + 1, "the next Python of the distribution would remove the bus"
    assert "@" not in field(package, "")


def test_it_brings_every_file(root: Path) -> None:
    for path in (
        "usr/lib/systemd/system/sbusd.socket",
        "usr/lib/systemd/system/sbusd-admin.socket",
        "usr/lib/systemd/system/sbusd.service",
        "usr/lib/systemd/system/sbus-metrics.service",
        "usr/lib/systemd/system/sbus-bridge.service",
        "usr/lib/systemd/system/sbus-recorder.service",
        "usr/lib/systemd/user/sbusd.socket",
        "usr/lib/sysusers.d/sbus.conf",
        "usr/lib/tmpfiles.d/sbus.conf",
        "etc/sbus/sbus.toml",
        "usr/share/man/man8/sbusd.8.gz",
        "usr/share/man/man1/sbusctl.1.gz",
        "usr/share/man/man1/sbusctl-pub.1.gz",
        "usr/share/bash-completion/completions/sbusctl",
        "usr/share/zsh/vendor-completions/_sbusctl",
        "usr/share/fish/vendor_completions.d/sbusctl.fish",
        "usr/share/doc/sbus/copyright",
    ):
        assert (root / path).stat().st_size, path


def test_nothing_in_it_knows_where_it_was_built(package: Path, root: Path) -> None:
    """Bytecode holds paths, too."""
    places = [bytes(PROJECT), bytes(package.parent), sys.prefix.encode(), b"/tmp/tmp."]
    for path in root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [place for place in places if place in content], path


def test_the_configuration_survives_an_upgrade(package: Path) -> None:
    done = subprocess.run(["dpkg-deb", "-I", package, "conffiles"], capture_output=True, check=True)
    assert done.stdout == b"/etc/sbus/sbus.toml\n"


@contextmanager
def running_bus(root: Path, directory: Path) -> Iterator[str]:
    """The address of a bus of the package, which runs from where that was unpacked."""
    path = str(directory / "bus")
    arguments = ("-f", "-a", path, "--config", str(root / "etc/sbus/sbus.toml"), "--workers=2")
    with bus_of(directory, *arguments, address=path, command=command(root, "sbusd")) as bus:
        yield bus.address


def command(root: Path, name: str) -> tuple[str, ...]:
    """A program of the package, with nothing but the standard library of Python."""
    visible = () if os.geteuid() == 0 else ("SBUS_DUMPABLE=1",)  # in /proc, for the tests
    return ("env", "-i", *visible, str(PYTHON), "-I", "-B", str(root / "usr/bin" / name))


def test_it_runs_from_any_directory(root: Path, tmp_path: Path) -> None:
    with running_bus(root, tmp_path) as path:
        with RawClient(path) as client:
            client.sub(b"key")
            client.sync()
            run(*command(root, "sbusctl"), "-a", path, "pub", "key", "payload")
            assert client.receive() == b"MSG key\0payload"
        version = run(*command(root, "sbusctl"), "-a", path, "version")
        assert path in version
        assert "sbus_" in run(*command(root, "sbusctl"), "-a", path, "metrics")
    assert run(*command(root, "sbusctl"), "--version").startswith("sbusctl ")


# -- the library for the system's Python -----------------------------------------------------------
@pytest.fixture(scope="module")
def library(package: Path) -> Path:
    """Where python3-sbus is unpacked, and nothing else."""
    (built,) = package.parent.glob("python3-sbus_*.deb")
    unpacked = package.parent / "library"
    subprocess.run(["dpkg-deb", "-x", built, unpacked], check=True)
    return unpacked


@pytest.fixture(scope="module")
def host_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages that the host has: those that other programs use, msgspec not among them."""
    directory = tmp_path_factory.mktemp("host_packages")
    for name in (
        "anyio",
        "attr",
        "attrs",
        "idna",
        "outcome",
        "sniffio",
        "sortedcontainers",
        "trio",
    ):
        (directory / name).symlink_to(SITE / name)
    (directory / "typing_extensions.py").symlink_to(SITE / "typing_extensions.py")
    return directory


def run_program(
    script: str, library: Path, *packages: Path, arguments: tuple[str, ...] = ()
) -> Any:
    """Run a program of the system's Python; what it prints."""
    paths = [str(library / "usr/lib/python3/dist-packages"), *map(str, packages)]
    before = f"import site, sys; [site.addsitedir(path) for path in {paths}]\n"
    return run("env", "-i", str(PYTHON), "-I", "-S", "-B", "-c", before + script, *arguments)


def test_the_library_does_without_the_bus(package: Path) -> None:
    (library,) = package.parent.glob("python3-sbus_*.deb")
    assert field(library, "Architecture") == field(package, "Architecture")
    bounds = field(package, "Depends").partition(", libc6")[0]
    assert field(library, "Depends") == f"{bounds}, python3-anyio (>= 3.6), libc6"


def test_the_two_packages_share_no_file(root: Path, library: Path) -> None:
    both = [
        {path.relative_to(top) for path in top.rglob("*") if path.is_file()}
        for top in (root, library)
    ]
    assert not both[0] & both[1]


def test_programs_find_sbus_and_nothing_else(library: Path) -> None:
    """Neither what the library needs, nor what the bus does."""
    names = sorted(
        {path.name.partition(".")[0] for path in SITE.iterdir()} - {"sbus", "__pycache__"}
    )
    script = f"""
from importlib.util import find_spec
print(*[name for name in {names} if name.isidentifier() and find_spec(name)])
"""
    assert run_program(script, library).split() == []
    assert run_program(f"import sbus{script}", library).split() == ["msgspec"]


def test_every_module_of_the_library_has_what_it_needs(library: Path, host_packages: Path) -> None:
    script = """
import importlib, pkgutil, sbus
for module in pkgutil.walk_packages(sbus.__path__, "sbus."):
    if not module.name.startswith(("sbus._needs.", "sbus.testing")):
        importlib.import_module(module.name)
print(*[getattr(sbus, name) is None for name in sbus.__all__], sys.modules["msgspec"].__file__)
"""
    *missing, home = run_program(script, library, host_packages).split()
    assert set(missing) == {"False"}
    assert Path(home).is_relative_to(library)


def test_a_program_s_own_msgspec_is_used(library: Path, tmp_path: Path) -> None:
    (tmp_path / "msgspec").symlink_to(SITE / "msgspec")
    script = "import sbus.blocking, msgspec; print(msgspec.__file__)"
    assert Path(run_program(script, library, tmp_path).strip()).is_relative_to(tmp_path)


@pytest.mark.parametrize("face", ["blocking", "asyncio", "trio"])
def test_a_program_uses_a_bus_with_the_anyio_of_debian_12(
    root: Path, library: Path, host_packages: Path, tmp_path: Path, face: str
) -> None:
    """Its version 3.6.2 lacks three functions and an option of later ones."""
    script = """
import sbus, sbus.blocking

def check(message):
    print(message.key.decode(), message.payload.decode(), "trio" in sys.modules)

def use(address):
    with sbus.blocking.connect(address) as bus:
        bus.subscribe("a/*")
        bus.publish("a/key", "payload")
        check(bus.receive())

async def use_asynchronously(address):
    async with sbus.connect(address) as bus:
        await bus.subscribe("a/*")
        await bus.publish("a/key", "payload")
        check(await bus.receive())

face, address = sys.argv[1:]
if face == "blocking":
    use(address)
else:
    import anyio
    anyio.notify_closing = anyio.wait_readable = anyio.wait_writable = None
    lock = anyio.Lock
    anyio.Lock = lambda: lock()
    anyio.run(use_asynchronously, address, backend=face)
"""
    with running_bus(root, tmp_path) as address:
        seen = run_program(script, library, host_packages, arguments=(face, address))
    assert seen.split() == ["a/key", "payload", str(face == "trio")]


def test_tests_of_programs_run_the_bus_of_the_host(
    root: Path, library: Path, tmp_path: Path
) -> None:
    """`sbus.testing` runs `sbusd` where the library is without it."""
    program = tmp_path / "sbusd"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command(root, "sbusd"))} "$@"\n')
    program.chmod(0o755)
    script = """
import os
from pathlib import Path
os.environ["PATH"] += f":{sys.argv[1]}"
import sbus.blocking
from sbus.testing import start_bus
with start_bus(Path(sys.argv[1])) as address, sbus.blocking.connect(address) as bus:
    print(bus.whoami().pid == os.getpid())
"""
    script = f"import os; os.environ.setdefault('PATH', '/usr/bin:/bin')\n{script}"
    assert run_program(script, library, SITE, arguments=(str(tmp_path),)).split() == ["True"]


# -- installed over another version ----------------------------------------------------------------
def with_version(
    package: Path, version: str, path: Path, more: str = "", unit_line: str = ""
) -> None:
    """Make another package, which differs only in its version, in what its module does, and in a
    line of its unit."""
    root = path.with_suffix("")
    subprocess.run(["dpkg-deb", "-R", package, root], check=True)
    source = root / "usr/lib/sbus/sbus/version.py"
    source.with_name("build.txt").write_text(f"{version} 12345678\n")
    source.write_text(source.read_text() + more)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), invalidation_mode=mode, doraise=True)
    if unit_line:
        unit = root / "usr/lib/systemd/system/sbusd.service"
        unit.write_text(unit.read_text().replace("[Service]\n", f"[Service]\n{unit_line}\n"))
    control = root / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*", f"Version: {version}", control.read_text()))
    options = ("-Znone", "--root-owner-group")
    subprocess.run(["dpkg-deb", *options, "-b", root, path], stdout=subprocess.DEVNULL, check=True)


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if why_not := booted.why_not() or booted.why_not_packages():
        pytest.skip(why_not)
    packages = tmp_path_factory.mktemp("packages")
    with_version(package, OLD, packages / "old.deb")
    with_version(package, NEW, packages / "new.deb")
    with_version(package, NEW, packages / "broken.deb", BROKEN)
    with_version(package, OLD, packages / "unit.deb", unit_line="Nice=1")
    return booted.boot(package_probe.__name__, packages)


@pytest.mark.parametrize(("way", "version"), [("upgrade", NEW), ("downgrade", OLD)])
def test_clients_stay_connected_when_another_version_is_installed(
    installed: Any, way: str, version: str
) -> None:
    seen = installed[way]
    print(f"{way}: {CLIENTS} clients, longest wait {seen['longest wait']:.3f} s")
    assert installed["first"] == OLD
    assert seen["version"] == version
    assert seen["is another process"]
    assert seen["lost"] == NOTHING
    assert GOES_ON not in seen["printed"]
    assert UNIT_CHANGED not in seen["printed"]
    assert seen["longest wait"] < WAIT_SECONDS_MAX
    assert installed["state"] == "active"


def test_a_version_that_does_not_start_changes_nothing(installed: Any) -> None:
    seen = installed["broken"]
    assert seen["version"] == OLD
    assert not seen["is another process"]
    assert seen["lost"] == NOTHING
    assert GOES_ON in seen["printed"]
    assert "the next start of the bus will fail" in seen["printed"]


def test_a_change_of_the_unit_is_told(installed: Any) -> None:
    seen = installed["changed unit"]
    assert f"{UNIT_CHANGED}, and is in force in full only after" in seen["printed"]
    assert seen["lost"] == NOTHING


def test_a_version_that_does_not_know_a_setting_is_not_configured_until_that_is_mended(
    installed: Any,
) -> None:
    seen = installed["newer setting"]
    assert "setting_of_a_later_version: there is no such field" in seen["printed"]
    assert "the next start of the bus will fail" in seen["printed"]
    assert seen["lost"] == NOTHING
    assert seen["configured"] == 0, seen["printed then"]


def test_the_bus_starts_with_the_host(installed: Any) -> None:
    assert installed["running without a client"] == "enabled"


def test_a_purge_leaves_nothing_enabled(installed: Any) -> None:
    assert installed["still enabled"] == []


def test_what_recorder_and_bridge_need_is_pinned(root: Path) -> None:
    for extra, name in (("recorder", "deltalake"), ("bridge", "nats-py")):
        lock = (root / f"usr/share/sbus/{extra}.lock").read_text()
        assert re.search(rf"^{name}==\S+", lock, re.M)
        assert lock.count("--hash=sha256:") >= lock.count("==")
        assert "\nmsgspec==" not in lock, "the package has it"


def test_every_upgrade_of_the_package_tells_its_pause(installed: Any) -> None:
    pauses = [int(found) for found in re.findall(r"pause: (\d+) ms", installed["stderr"])]
    assert len(pauses) == 5  # upgrade, downgrade, changed unit, and mended twice
    assert max(pauses) < WAIT_SECONDS_MAX * 1_000


def run(*words: str) -> Any:
    done = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()

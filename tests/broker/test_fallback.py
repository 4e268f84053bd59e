"""A bus without its compiled step says so in its log, unless Python was chosen.

The sources of the step are changed in a copy of the package, so its module does not fit them.
"""

import shutil
import sys
from pathlib import Path

import pytest

import sbus
from sbus.compiled import SOURCES
from tests.support.admin import administer
from tests.support.bus import bus_of
from tests.support.needs import needs_compiled_step

WARNING = "the compiled step is not there, so messages cost several times as much"


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """`sbusd` of a copy whose C sources have changed since they were compiled."""
    package = tmp_path_factory.mktemp("copy") / "sbus"
    ignore = shutil.ignore_patterns("__pycache__", "bench", "demo", "pipeline", "bridge")
    shutil.copytree(Path(sbus.__file__).parent, package, ignore=ignore)
    with (package / "compiled" / SOURCES[0]).open("a") as source:
        source.write("\n")
    start = f"import sys; sys.path.insert(0, {str(package.parent)!r})"
    return (sys.executable, "-P", "-c", f"{start}; from sbus.cli.sbusd.command import main; main()")


@needs_compiled_step
@pytest.mark.parametrize(("choice", "is_told"), [("", True), ("python", False)])
def test_a_step_that_cannot_be_used_is_in_the_log(
    tmp_path: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    is_told: bool,
) -> None:
    monkeypatch.setenv("SBUS_STEP", choice)
    address = str(tmp_path / "bus")
    arguments = ("-f", "-a", address, "--workers=1")
    with bus_of(tmp_path, *arguments, address=address, command=command) as bus:
        with administer(bus) as admin:
            assert admin.ask("version")["step"] == "python"
        assert (WARNING in bus.stderr_text()) == is_told

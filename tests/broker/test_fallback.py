"""A bus without its compiled step says so in its log, unless Python was chosen.

Which modules count as absent: `tests/unit/compiled/test_compiled.py`.
"""

import sys
from pathlib import Path

import pytest

from tests.support.admin import administer
from tests.support.bus import running_bus

WARNING = "the compiled step is not there, so messages cost several times as much"
WITHOUT_STEP = """
import sys
sys.modules["sbus.compiled._step"] = None
from sbus.cli.sbusd.command import main
main()
"""


@pytest.mark.parametrize(("choice", "is_told"), [("", True), ("python", False)])
def test_a_step_that_cannot_be_used_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, is_told: bool
) -> None:
    monkeypatch.setenv("SBUS_STEP", choice)
    command = (sys.executable, "-P", "-c", WITHOUT_STEP)
    with running_bus(tmp_path, command=command, workers=1) as bus:
        with administer(bus) as admin:
            assert admin.ask("version")["step"] == "python"
        assert (WARNING in bus.stderr_text()) == is_told

"""What some tests need besides Python, and what becomes of those whose machine lacks it.

Where CI is set they fail, unless they need other rights or another kernel: a run that is green has
run everything. Elsewhere they are skipped, and the end of the run names what was not run and what
to install. A reason that names a package ends with `(Debian: PACKAGE)`.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable

import pytest

from sbus.compiled import STEP

SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
PYTHON_WAS_CHOSEN = os.environ.get("SBUS_STEP") == "python"
ALLOWED_IN_CI = ("only root ", "needs Linux ")
_PACKAGES = re.compile(r"\(Debian: ([\w. -]+)\)$")

needs_compiled_step = pytest.mark.compiled_step


def needs_tool(program: str, *packages: str) -> pytest.MarkDecorator:
    """For a test that runs this program, which these Debian packages have."""
    missing = shutil.which(program, path=SYSTEM_PATH) is None
    return pytest.mark.skipif(missing, reason=without(program, *packages))


def without(program: str, *packages: str) -> str:
    """The reason of a test that is skipped because there is no such program."""
    return f"there is no {program} (Debian: {' '.join(packages)})"


def leave_out_tests_of_the_compiled_step(
    items: list[pytest.Item],
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those to run and those to deselect, which have no object where Python was chosen.

    Where the step should have been compiled, its tests are skipped for want of a compiler, and
    buses that the others start do not warn of that.
    """
    own = [item for item in items if item.get_closest_marker("compiled_step")]
    if STEP != "python":
        return items, []
    if not PYTHON_WAS_CHOSEN:
        reason = without("C compiler with the headers of Python", "gcc", "python3-dev")
        for item in own:
            item.add_marker(pytest.mark.skip(reason=reason))
        os.environ["SBUS_STEP"] = "python"
        return items, []
    return [item for item in items if item not in own], own


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    place = report.longrepr
    text = place[2] if isinstance(place, tuple) else str(place)
    return text.removeprefix("Skipped: ")


def fail_if_skipped_in_ci(report: pytest.TestReport) -> None:
    """Make the test fail unless its machine could not have run it."""
    if not report.skipped or hasattr(report, "wasxfail") or "CI" not in os.environ:
        return
    reason = reason_of(report)
    if not reason.startswith(ALLOWED_IN_CI):
        report.outcome = "failed"
        report.longrepr = f"not run, which is a failure where CI is set: {reason}"


def summary(reports: Iterable[pytest.TestReport]) -> list[str]:
    """What was not run and what to install, a line each; nothing if all was run."""
    counts = Counter(map(reason_of, reports))
    found = (_PACKAGES.search(reason) for reason in counts)
    packages = sorted({name for match in found if match for name in match[1].split()})
    lines = [f"not run: {count} × {reason}" for reason, count in sorted(counts.items())]
    return lines + ([f"to run them: apt-get install {' '.join(packages)}"] if packages else [])

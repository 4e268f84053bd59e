"""What all tests share: a name, interrupts, settings of hypothesis, shares for two, and a bus."""

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support import compiled_step

compiled_step.load()

from tests.support import needs  # noqa: E402
from tests.support.bus import Bus, running_bus  # noqa: E402

# Without bytecode, most of a start of a bus is compilation, and tests start a thousand.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# sbusctl names what an interpreter runs if it finds that out in time; this is what the kernel says.
Path("/proc/thread-self/comm").write_text("sbus-tests")

# A shell ignores SIGINT on behalf of what it starts in the background, and nohup SIGHUP; programs
# that the tests start would inherit that, and tests that end them so would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long one example takes says more about the machine than about the code. A run of the suite has
# the same examples each time; new ones are for `--hypothesis-profile=thorough`.
hypothesis.settings.register_profile("sbus", deadline=None, derandomize=True)
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile("sbus")


# Files whose tests take longest begin first, so that no process ends long before the others.
LONGEST = (
    "tests/pipeline/test_spark_cluster.py",
    "tests/pipeline/",
    "tests/model/",
    "tests/protocol/20-survival.t",
    "tests/protocol/21-survival-of-backlogs.t",
    "tests/broker/test_upgrade.py",
    "tests/broker/test_resuming.py",
    "tests/hostile/",
    "tests/simulation/",
    "tests/deploy/",
    "tests/fuzz/",
    "tests/bridge/",
    "tests/broker/",
)
WITH_ONE_SPARK_SESSION = tuple(
    f"tests/pipeline/{folder}/" for folder in ("cli", "jobs", "report", "spark")
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:], deselected = needs.leave_out_tests_of_the_compiled_step(items)
    config.hook.pytest_deselected(items=deselected)

    def rank(item: pytest.Item) -> int:
        ranks = (rank for rank, start in enumerate(LONGEST) if item.nodeid.startswith(start))
        return next(ranks, len(LONGEST))

    items.sort(key=rank)


class OneProcessForSpark(LoadFileScheduling):  # type: ignore[misc]
    """Hands out the tests of one file together, and those that share a Spark session.

    While these keep one processor busy, most of the others wait for processes of theirs.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "Spark" if nodeid.startswith(WITH_ONE_SPARK_SESSION) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneProcessForSpark:
    config.option.loadscopereorder = False
    return OneProcessForSpark(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needs.fail_if_skipped_in_ci(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in needs.summary(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    """A bus with two workers and no further options."""
    with running_bus(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """The same for tests of one module that leave nothing behind that another would notice."""
    with running_bus(tmp_path_factory.mktemp("bus")) as running:
        yield running

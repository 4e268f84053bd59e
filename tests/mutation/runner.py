"""Runs tests again and again, each time in a fresh process: the process 1 of a PID namespace.

What a test needs is imported once, but for the project; a run is a fork of that. A bus that was
damaged can kill nothing but what belongs to its own test, and leaves no process behind.

`Runner` starts such a process, which reads jobs from its standard input, and writes what came of
them to its standard output: a line of JSON each.
"""

import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

MEMORY_BYTES_MAX = 8 << 30
FILE_BYTES_MAX = 2 << 30
_IMPORTED = (
    *("_hypothesis_pytestplugin", "hypothesis.stateful", "pytest_trio.plugin", "xdist.scheduler"),
    *("click", "msgspec", "sortedcontainers"),
)
"""What tests need and no mutant is in."""
_TIMED_OUT = -1
"""In place of an exit status."""


@dataclass
class Outcome:
    """What came of one run of tests."""

    status: int
    seconds: float
    cpu_seconds: float
    failed: list[str] = field(default_factory=list)
    """The tests that failed."""
    tests: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Of each that passed its seconds, and which bytes of the page were stored to, if the page was
    given: a hexadecimal number, the first byte in its highest bit."""
    output: str = ""

    @property
    def is_killed(self) -> bool:
        """Whether the change was noticed; if no test was run, it was not."""
        return self.status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    @property
    def killer(self) -> str:
        """What noticed the change."""
        if self.status == _TIMED_OUT:
            return "time-out"
        return self.failed[0] if self.failed else "before the tests"

    @property
    def failures(self) -> list[str]:
        """The tests that failed, or what ended them all."""
        return self.failed or ([self.killer] if self.is_killed else [])


class Runner:
    """The handle on such a process, for tests of a tree."""

    def __init__(self, tree: Path, step: str) -> None:
        self._tree = tree
        self._process = subprocess.Popen(
            [
                "unshare",
                "--pid",
                "--fork",
                "--mount-proc",
                "--kill-child",
                sys.executable,
                __file__,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "SBUS_STEP": step},
        )

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(
        self,
        paths: Sequence[str],
        seconds_max: float,
        tests: Sequence[str] = (),
        page: Path | None = None,
        options: Sequence[str] = ("-x",),
    ) -> Outcome:
        """Run the tests of these files; only these and in this order, if any are named. The page is
        read and cleared after each test. Raises FileNotFoundError for a file that is not there,
        which pytest would fail for."""
        for path in paths:
            (self._tree / path.partition("::")[0]).stat()
        job = {"paths": paths, "tests": tests, "seconds_max": seconds_max, "options": options}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**job, "page": page and str(page)}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the runner has ended"
        return Outcome(**json.loads(line))


class Watch:
    """A plugin of pytest: chooses the tests, and reports on them."""

    def __init__(self, tests: list[str], page: str | None) -> None:
        self._tests = {test: place for place, test in enumerate(tests)}
        self._page = Path(page) if page else None
        self._seconds: dict[str, float] = {}
        self.report: dict[str, Any] = {"failed": [], "tests": {}}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._tests:
            items[:] = [item for item in items if item.nodeid in self._tests]
            items.sort(key=lambda item: self._tests[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.failed:
            self.report["failed"].append(name)
            self.report["tests"].pop(name, None)
        if report.when == "call" and report.passed:
            self.report["tests"][name] = (0.0, "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        page = ""
        if self._page:
            page = f"{int(self._page.read_bytes().translate(_BITS), 2):x}"
            with self._page.open("r+b") as file:
                file.write(bytes(self._page.stat().st_size))
        if nodeid in self.report["tests"]:
            self.report["tests"][nodeid] = (round(self._seconds[nodeid], 3), page)


_BITS = b"0" + b"1" * 255
"""The digit for each byte of the page."""


def _run(job: dict[str, Any], log: Path, result: Path) -> int:
    sys.path[0] = os.getcwd()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX,) * 2)
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    watch = Watch(job["tests"], job["page"])
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--basetemp", str(log.parent / "tmp")]
    warnings = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    status = pytest.main([*options, *warnings, *job["options"], *job["paths"]], plugins=[watch])
    result.write_text(json.dumps(watch.report))
    return status


def _serve_job(job: dict[str, Any], directory: Path) -> dict[str, Any]:
    log, result = directory / "log", directory / "result"
    result.unlink(missing_ok=True)
    begun, cpu_begun = time.monotonic(), _cpu_seconds()
    if (pid := os.fork()) == 0:
        status = 70
        try:
            status = _run(job, log, result)
        finally:
            os._exit(status)
    has_ended = _has_ended_within(job["seconds_max"], pid)
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    ended, status = 0, 0
    with suppress(ChildProcessError):
        while True:
            ended, code = os.waitpid(-1, 0)
            if ended == pid:
                status = os.waitstatus_to_exitcode(code)
    report = json.loads(result.read_text()) if result.exists() else {}
    return {
        "status": status if has_ended else _TIMED_OUT,
        "seconds": round(time.monotonic() - begun, 2),
        "cpu_seconds": round(_cpu_seconds() - cpu_begun, 2),
        "output": log.read_text(errors="replace")[-2000:] if log.exists() else "",
        **report,
    }


def _has_ended_within(seconds: float, pid: int) -> bool:
    """Whether the child ends in this time. Ends the program if its user does."""
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(sys.stdin.fileno(), 0)  # a hang-up is reported all the same
    events = dict(poll.poll(seconds * 1000))
    os.close(pidfd)
    if sys.stdin.fileno() in events:
        sys.exit()
    return pidfd in events


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    directory = Path(os.getcwd()) / "runs"
    directory.mkdir(exist_ok=True)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    for line in sys.stdin.buffer:
        answers.write(json.dumps(_serve_job(json.loads(line), directory)).encode() + b"\n")


if __name__ == "__main__":
    main()

"""One run: a bus, its clients and what happens to it, all by a seed; then its history is checked.

    python -m tests.campaign --seed S --runs 1     repeats the plan of a seed

The times at which processes do something are not repeated, so that a failure may need some runs.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaign.bus import HUNG_SECONDS_MAX, CampaignBus
from tests.campaign.clients import Load
from tests.campaign.events import Events
from tests.campaign.figures import figures_of
from tests.campaign.plan import Plan
from tests.history.checks import Violation, check
from tests.history.history import History
from tests.history.log import LOGGED, REPORTED, Log, read_log
from tests.support.bus import PROJECT
from tests.support.threads import Task, meanwhile

_DISK_BYTES = 32 * 1024 * 1024


class Outcome(NamedTuple):
    """Of one run."""

    violations: list[Violation]
    figures: dict[str, int]


@contextmanager
def _disk() -> Iterator[tuple[Path, bool]]:
    """A directory, if possible on a small file system of its own, and whether it is."""
    with tempfile.TemporaryDirectory(prefix="sbus-campaign-", dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        size = f"size={_DISK_BYTES},mode=755"
        mount = ["mount", "-t", "tmpfs", "-o", size, "sbus-campaign", name]
        is_own = os.geteuid() == 0 and not subprocess.run(mount, check=False).returncode
        try:
            yield path, is_own
        finally:
            if is_own:
                subprocess.run(["umount", "--lazy", name], check=True)


def run(plan: Plan, kept: Path, trees: Sequence[Path] = (PROJECT,)) -> Outcome:
    """Run it, with the first tree, and the others by turns after upgrades. The logs of the clients
    and of the bus are in `kept`, unless nothing is wrong."""
    kept.mkdir(parents=True, exist_ok=True)
    path = kept / "history.log"
    log = Log(path)
    counts: dict[str, int] = {}
    with _disk() as (directory, is_own):
        bus = CampaignBus(directory / "bus", plan, trees)
        try:
            bus.directory.chmod(0o755)
            bus.start()
            events = Events(bus, plan, log, is_own)
            counts = events.counts
            _drive(bus, plan, log, events)
            bus.stop()
        except Exception as error:
            log.event(f"fault {type(error).__name__}: {error}")
        finally:
            with suppress(AssertionError):  # a traceback in its log, which is checked below
                bus.end()
            for line in bus.errors.read_bytes().splitlines():
                log.write(0, LOGGED, line)
            shutil.copy(bus.errors, kept / "bus.log")
            log.close()
    with path.open("rb") as lines:
        history = History(read_log(lines))
    violations = check(history)
    figures = figures_of(history) | counts
    if not violations:
        shutil.rmtree(kept)
    return Outcome(violations, figures)


def _drive(bus: CampaignBus, plan: Plan, log: Log, events: Events) -> None:
    load = Load(plan, log, bus.bus_address)
    with ExitStack() as stack:
        stack.callback(load.close)
        for client in load.clients:
            client.connect()
        with meanwhile(events.run):
            ends_at = time.monotonic() + plan.seconds
            load.run(lambda: time.monotonic() >= ends_at)
            # An event that has begun takes its time, and the clients go on meanwhile.
        settled = Task(lambda: _await_workers(events))
        load.run(lambda: settled.ends_within(0))
        if not load.finish(HUNG_SECONDS_MAX):
            log.event("fault some clients got no reply in time")
        _report(log, events)
        log.event("end")
        load.close()
        _report(log, events)


def _await_workers(events: Events) -> None:
    """Return when all workers serve."""
    ends_at = time.monotonic() + HUNG_SECONDS_MAX
    while time.monotonic() < ends_at:
        if events.all_serve():
            return
        time.sleep(0.1)
    raise AssertionError("a worker does not serve")


def _report(log: Log, events: Events) -> None:
    """Write the ledgers of the bus, which its workers share with some delay."""
    before: dict[str, Any] = {}
    ends_at = time.monotonic() + HUNG_SECONDS_MAX
    while time.monotonic() < ends_at:
        traffic = events.ask("stats").get("result", {}).get("traffic", {})
        clients = events.ask("clients").get("result", {}).get("clients", [])
        found = {str(it["client"]): it["activity"] for it in clients if it["activity"]}
        now = {"bus": traffic, **found}
        if now == before and traffic:
            log.write(0, REPORTED, json.dumps(now).encode())
            return
        before = now
        time.sleep(0.2)
    log.event("fault the ledger of the bus does not come to rest")

"""Two short runs of the campaign, with fixed plans, and the record of its runs."""

import json
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sbus.compiled import STEP
from tests.campaign import scheduler
from tests.campaign.__main__ import main
from tests.campaign.bus import HUNG_SECONDS_MAX
from tests.campaign.clients import Load
from tests.campaign.figures import summary
from tests.campaign.plan import Event, Plan, plan_of
from tests.campaign.runs import Outcome, run
from tests.campaign.scheduler import State, tree_id
from tests.history.checks import CHECKS, Violation
from tests.history.history import History
from tests.history.log import Log
from tests.support.bus import PROJECT
from tests.support.previous import FIRST, PREVIOUS, skip_without, tree_of
from tests.support.raw_client import PACKET_BYTES_MAX
from tests.support.threads import Task

_STEP = "mixed" if STEP == "compiled" else STEP
EVENTS = {
    "deaths": ("kill-worker", "move", "kill-worker", "upgrade", "stop-worker", "kill-all"),
    "changes": ("move", "upgrade", "move", "reload", "stop-front", "upgrade", "connections"),
}


def _plan(workers: int, step: str, events: Iterable[Event], actions_per_second: int) -> Plan:
    return Plan(
        seed=1,
        workers=workers,
        dialect="slash",
        step=step,
        descriptors=0,
        backlog=65_536,
        seconds=4.0,
        actions_per_second=actions_per_second,
        clients=24,
        events=[*events],
    )


@pytest.mark.parametrize("name", EVENTS)
def test_promises_hold_in_a_short_run(tmp_path: Path, name: str) -> None:
    events = (Event(0.5 + at / 2, event, 0.9) for at, event in enumerate(EVENTS[name]))
    outcome = run(_plan(3, _STEP, events, 200), tmp_path / "logs")
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.figures["messages"]
    assert outcome.figures["receipts"]
    assert outcome.figures["barriers"]


@pytest.mark.parametrize("earlier", [PREVIOUS, FIRST])
def test_promises_hold_over_upgrades_from_an_earlier_version_and_back(
    tmp_path: Path, earlier: str
) -> None:
    """Once messages wait for clients that do not read."""
    skip_without(earlier)
    plan = _plan(2, STEP, (Event(2.5, "upgrade", 0.9), Event(3.5, "upgrade", 0.5)), 800)
    trees = [tree_of(earlier), PROJECT]
    outcome = run(plan, tmp_path / "logs", trees)
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.figures["upgrades done"] == 2


def test_a_barrier_that_a_full_backlog_cost_is_repeated(tmp_path: Path) -> None:
    """In the dot dialect; each second barrier is answered here."""
    address = str(tmp_path / "bus")
    log = Log(tmp_path / "log")
    load = Load(plan_of(2)._replace(dialect="dot"), log, address)
    (client, *_) = load.clients
    load.clients = [client]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        assert client.connect()
        bus, _ = listener.accept()
    with bus:

        def answer() -> None:
            barriers = 0
            while packet := bus.recv(PACKET_BYTES_MAX):
                barriers += packet.startswith(b"MSG self.")
                if packet.startswith(b"MSG self.") and not barriers % 2:
                    bus.send(packet)

        task = Task(answer)
        assert load.finish(HUNG_SECONDS_MAX)
        load.close()
        task.join()
    log.close()


def test_a_campaign_goes_on_with_what_is_written_down(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    State(path, "one tree").add(1, 2.0, {"messages": 3}, None)
    State(path, "one tree").add(2, 1.5, {"messages": 4}, {"seed": 2})
    State(path, "another tree").add(1, 1.0, {}, None)
    assert State(path, "one tree").own == {
        "seeds": [1, 2],
        "seconds": 3.5,
        "figures": {"messages": 7},
        "failures": [{"seed": 2}],
    }


def _campaign(state: Path, *arguments: str) -> Result:
    logs = state.with_name("logs")
    return CliRunner().invoke(main, ["--state", str(state), "--logs", str(logs), *arguments])


def test_an_error_in_a_check_is_a_failure_of_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_badly(_: History) -> Iterator[str]:
        raise KeyError("a mistake in a check")
        yield

    monkeypatch.setitem(CHECKS, "order", check_badly)
    short = plan_of(2, 0.2)._replace(events=[])
    monkeypatch.setattr(scheduler, "plan_of", lambda seed: short._replace(seed=seed))
    state = tmp_path / "state.json"
    result = _campaign(state, "--runs", "2")
    assert result.exit_code == 1
    assert "violations: 2, of the seeds 1-2" in result.output
    failures = json.loads(state.read_text())[tree_id(PROJECT)]["failures"]
    assert [failure["seed"] for failure in failures] == [1, 2]
    assert all("a mistake in a check" in failure["violations"][0] for failure in failures)
    assert (tmp_path / "logs" / "seed-1" / "history.log").exists()


def test_time_and_failures_of_earlier_calls_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def run_briefly(plan: Plan, *_: object) -> Outcome:
        seeds.append(plan.seed)
        return Outcome([], {"messages": 1})

    monkeypatch.setattr(scheduler, "run", run_briefly)
    path = tmp_path / "state.json"
    state = State(path, tree_id(PROJECT))
    state.add(1, 100.0, {}, {"seed": 1, "violations": [str(Violation("order", "wrong"))]})
    enough = _campaign(path, "--for", "90s")
    assert (enough.exit_code, seeds) == (1, [])
    more = _campaign(path, "--for", "2h", "--runs", "2")
    assert (more.exit_code, seeds) == (1, [2, 3])
    assert "seeds 1-3" in more.output


def test_a_changed_tree_is_another_one(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        own = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *own, *arguments], check=True)

    path = tmp_path / "file"
    names = []
    git("init", "-q")
    for number, text in enumerate(("one", "two", "three")):
        path.write_text(text)
        if not number:
            git("add", "file")
            git("commit", "-q", "-m", "a commit")
        names.append(tree_id(tmp_path))
    assert len(set(names)) == 3
    assert all(name.startswith(f"{names[0]}-dirty-") for name in names[1:])


def test_the_summary_says_what_was_done_and_what_was_not() -> None:
    figures = {"upgrades done": 2, "upgrades tried": 3, "moves done": 40, "moves tried": 50}
    figures |= {"deaths": 5, "restarts": 1, "messages": 10**9, "received": 10**10, "full disk": 1}
    failures = [{"seed": 7, "violations": ["order: one", "order: two"]}]
    seeds = [*range(1, 10), *range(20, 200, 2)]
    done = {"seeds": seeds, "seconds": 7201.5, "figures": figures, "failures": failures}
    lines = summary("0123456789ab-dirty-01234567", done)
    assert all(len(line) <= 80 for line in lines)
    text = "\n".join(lines)
    assert "seeds 1-9, 20, 22," in text
    assert "violations: 2, of the seeds 7\n" in text
    assert "upgrades: 2 done of 3 tried" in text
    assert "moves: 40 done of 50 tried" in text
    assert "full disk: 1 times" in text
    assert "descriptors used up: never" in text


@pytest.mark.parametrize("first", [1, 500])
def test_the_disk_is_full_in_one_of_the_first_ten_runs(first: int) -> None:
    plans = [plan_of(seed) for seed in range(first, first + 10)]
    assert any(plan.events[0].name == "full-disk" for plan in plans)

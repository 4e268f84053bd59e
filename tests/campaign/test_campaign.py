"""Two short runs of the campaign, with fixed plans, and what it writes down of its runs."""

from pathlib import Path

import pytest

from sbus.compiled import STEP
from tests.campaign.plan import Event, Plan
from tests.campaign.runs import run
from tests.campaign.scheduler import State

_STEP = "mixed" if STEP == "compiled" else STEP
EVENTS = {
    "deaths": ("kill-worker", "move", "kill-worker", "upgrade", "stop-worker", "kill-all"),
    "changes": ("move", "upgrade", "move", "reload", "stop-front", "upgrade", "connections"),
}


@pytest.mark.parametrize("name", EVENTS)
def test_promises_hold_in_a_short_run(tmp_path: Path, name: str) -> None:
    plan = Plan(
        seed=1,
        workers=3,
        dialect="slash",
        step=_STEP,
        descriptors=0,
        backlog=65_536,
        seconds=4.0,
        actions_per_second=200,
        clients=24,
        events=[Event(0.5 + at / 2, event, 0.9) for at, event in enumerate(EVENTS[name])],
    )
    outcome = run(plan, tmp_path / "logs")
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert outcome.figures["messages"]
    assert outcome.figures["receipts"]
    assert outcome.figures["barriers"]


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

"""The benchmark `attacks` runs, and writes its table into docs/security.md, which explains every
attack."""

import re
from pathlib import Path

from sbus.bench.attacks.programs import ATTACKS
from sbus.bench.attacks.scene import Outcome
from sbus.bench.attacks.table import SECTION, Sample, attacks, beyond, row, update
from sbus.bench.report import marks
from sbus.bench.servers import RunSettings
from tests.support.bus import PROJECT
from tests.support.users import directory_for_everybody, needs_root

MARKS = marks(SECTION)


def outcome(p99_us: int = 100, connect_ms: int = 1, lost: int = 0) -> Outcome:
    messages = {"p50_us": 50, "p99_us": p99_us, "lost": lost, "disordered": 0, "disconnected": 0}
    return Outcome(messages, {"p99_us": connect_ms * 1_000, "failed": 0}, [])


def test_a_row_compares_with_both_controls() -> None:
    sample = Sample(outcome(800, 20, lost=3), outcome(200, 4), outcome(400), 150.0)
    assert row("flood, 2", [sample]) == (
        *("flood, 2", "50", "800", "200", "4.0", "2.0", "20", "3"),
    )


def test_medians_are_shown_and_losses_added() -> None:
    samples = [Sample(outcome(p99, lost=1), outcome(), None, 0.0) for p99 in (100, 200, 900)]
    assert row("me, 1", samples)[2:6] == ("200", "100", "2.0", "2.0")
    assert row("me, 1", samples)[-1] == "3"


def test_what_costs_more_than_is_promised_gets_a_line() -> None:
    cheap = Sample(outcome(300, 250), outcome(), None, 50.0)
    slow = Sample(outcome(301), outcome(), outcome(), 50.0)
    waiting = Sample(outcome(connect_ms=251), outcome(), None, 50.0)
    lines = beyond({"cheap": [cheap], "slow": [slow], "waiting": [waiting]})
    assert [line.partition(":")[0] for line in lines] == ["slow", "waiting"]


@needs_root
def test_an_attack_is_measured_and_documented(tmp_path: Path) -> None:
    page = tmp_path / "security.md"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*MARKS))
    with directory_for_everybody() as directory:
        result = attacks(RunSettings(directory=directory, limits=()), ["whoami"], [1], 0.2)
    assert result.succeeded, result.notes
    update(tmp_path, result)
    assert "| whoami, 1 |" in page.read_text()


def test_every_attack_is_explained() -> None:
    text = (PROJECT / "docs/security.md").read_text()
    first_cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    assert re.findall(r"`([^`]+)`", " ".join(first_cells)) == list(ATTACKS)
    assert all(mark in text for mark in MARKS)

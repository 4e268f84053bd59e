"""The alerts for Prometheus: they use existing metrics, are documented, and tell what they should.

`promtool` evaluates them over made-up figures: each case is a fault, and the alerts that it fires.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sbus.cli.metrics.families import FAMILIES
from tests.support.needs import needs_tool

PROJECT = Path(__file__).resolve().parents[2]
ALERTS = PROJECT / "deploy/prometheus/alerts.yml"
TEXT = ALERTS.read_text()
NAMES = re.findall(r"- alert: (\w+)", TEXT)
needs_promtool = needs_tool("promtool", "prometheus")

UP = {"sbus_up": "1x120", "sbus_start_time_seconds": "1000x120"}
WORKER = '{worker="0"}'
TICK = '{process="0",operation="tick"}'
CASES: dict[str, tuple[dict[str, str], set[str]]] = {
    "all is well": (UP, set()),
    "no bus": ({"sbus_up": "1x100 0x20"}, {"SbusDown"}),
    "a dead exporter or host": (
        {name: f"{values.partition('x')[0]}x100 stale" for name, values in UP.items()},
        {"SbusMetricsMissing"},
    ),
    "a file that nobody writes": (
        {**UP, 'node_textfile_mtime_seconds{file="/var/lib/node/sbus.prom"}': "1000x120"},
        {"SbusMetricsStale"},
    ),
    "six kills between two scrapes": (
        {**UP, "sbus_start_time_seconds": "1000x115 7000x4"},
        {"SbusRestarted"},
    ),
    "a crash loop": (
        {**UP, "sbus_start_time_seconds": "1000x110 6700 6760 6820 6880 6940 7000 7060x3"},
        {"SbusRestarted", "SbusCrashLoop"},
    ),
    "a dead worker": (
        {**UP, f"sbus_worker_deaths_total{WORKER}": "0x110 1x9"},
        {"SbusWorkerDied"},
    ),
    "a stuck worker": (
        {**UP, f"sbus_worker_silence_seconds{WORKER}": "0x118 6"},
        {"SbusWorkerSilent"},
    ),
    "a longer operation": (
        {**UP, f"sbus_longest_operation_cpu_seconds{TICK}": "0.001x110 0.5x9"},
        {"SbusLongOperation"},
    ),
    "the first operation of its kind": (
        {**UP, f"sbus_longest_operation_cpu_seconds{TICK}": "_x110 0.5x9"},
        {"SbusLongOperation"},
    ),
    "an operation that was long yesterday": (
        {**UP, f"sbus_longest_operation_cpu_seconds{TICK}": "0.5x120"},
        set(),
    ),
    "a client that chose to drop": (
        {**UP, 'sbus_discarded_total{reason="soft"}': "0+10x120"},
        set(),
    ),
    "a client that loses messages": (
        {**UP, 'sbus_discarded_total{reason="hard"}': "0+10x120"},
        {"SbusMessagesLost"},
    ),
    "a user with too many connections": (
        {
            **UP,
            'sbus_user_connections{uid="7",user="7"}': "95x120",
            'sbus_user_connections_limit{uid="7",user="7"}': "100x120",
        },
        {"SbusUserNearLimit"},
    ),
    "a full log": (
        {**UP, "sbus_log_used_bytes": "95x120", "sbus_log_size_bytes": "100x120"},
        {"SbusLogFull"},
    ),
    "a name that is not found": ({**UP, "sbus_missing_names": "2x120"}, {"SbusNamesMissing"}),
    "no compiled step": (
        {**UP, 'sbus_build_info{step="python"}': "1x120"},
        {"SbusStepNotCompiled"},
    ),
}


def test_every_alert_is_documented_and_no_other() -> None:
    document = (PROJECT / "docs/metrics.md").read_text()
    assert re.findall(r"^\| `(Sbus\w+)` \|", document, re.M) == NAMES


def test_every_metric_of_an_alert_exists() -> None:
    there = {family.name for family in FAMILIES}
    asked = set(re.findall(r"\bsbus_\w+", "\n".join(re.findall(r"expr: (.*)", TEXT))))
    assert asked
    assert asked <= there


def test_every_alert_is_fired_by_a_case() -> None:
    assert set.union(*(fired for _, fired in CASES.values())) == set(NAMES)


@needs_promtool
def test_promtool_finds_no_mistake() -> None:
    done = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("case", CASES)
def test_a_fault_fires_its_alerts_and_no_others(case: str, tmp_path: Path) -> None:
    """Figures every minute for two hours, and then the alerts of the last minute."""
    given, fired = CASES[case]
    series = [{"series": _with_labels(name), "values": values} for name, values in given.items()]
    file = tmp_path / "test.json"  # which is YAML, too
    tests: list[dict[str, Any]] = [
        {
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "119m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fired)
                    ],
                }
            ],
        }
    ]
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def _with_labels(name: str) -> str:
    """A series of one instance, as a scrape gives it."""
    own = 'instance="host",job="sbus"'
    return name.replace("{", f"{{{own},") if "{" in name else f"{name}{{{own}}}"

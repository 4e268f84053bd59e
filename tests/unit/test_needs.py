"""Tests whose machine lacks something fail where CI is set, and are named elsewhere."""

import pytest

from tests.support import needs
from tests.support.previous import skip_without


def skipped(reason: str) -> pytest.TestReport:
    place = ("tests/test_x.py", 1, f"Skipped: {reason}")
    return pytest.TestReport("tests/test_x.py::test", ("x", 1, "x"), {}, "skipped", place, "setup")


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (needs.without("spin", "spin"), "failed"),
        ("no mount namespaces here", "failed"),
        ("only root can become another user", "skipped"),
        ("needs Linux 6.16 to refuse descriptors", "skipped"),
    ],
)
def test_a_skip_in_ci(monkeypatch: pytest.MonkeyPatch, reason: str, outcome: str) -> None:
    monkeypatch.setenv("CI", "true")
    report = skipped(reason)
    needs.fail_if_skipped_in_ci(report)
    assert report.outcome == outcome
    assert reason in str(report.longrepr)


def test_a_skip_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    report = skipped(needs.without("spin", "spin"))
    needs.fail_if_skipped_in_ci(report)
    assert report.outcome == "skipped"


def test_the_summary_names_all_reasons_and_what_to_install() -> None:
    reports = [
        skipped("only root can become another user"),
        skipped(needs.without("systemd or unshare", "systemd", "util-linux")),
        *[skipped(needs.without("spin", "spin"))] * 2,
    ]
    assert needs.summary(reports) == [
        "not run: 1 × only root can become another user",
        "not run: 2 × there is no spin (Debian: spin)",
        "not run: 1 × there is no systemd or unshare (Debian: systemd util-linux)",
        "to run them: apt-get install spin systemd util-linux",
    ]
    assert needs.summary([]) == []


def test_a_commit_that_history_does_not_have_is_one_of_the_things_that_lack() -> None:
    with pytest.raises(pytest.skip.Exception, match="no commit 0000"):
        skip_without("0" * 40)

"""Results as lines: the right figures, and no line too wide, whatever names hold."""

import io
import pwd
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sbus.cli.terminal import user_names
from sbus.cli.top.loads import ClientLoad, KeyLoad, Top, UserLoad, WorkerLoad
from sbus.cli.top.top_view import top_lines
from sbus.cli.views.bus_view import stats_lines, version_lines, workers_lines
from sbus.cli.views.clients_view import clients_lines, explain_lines, subscriptions_lines
from sbus.cli.views.users_view import limit_lines, me_lines, users_lines
from sbus.limits import OPERATION_CPU_SECONDS_MAX, Limits
from sbus.protocol.admin_results import (
    ClientsResult,
    ExplainResult,
    Fill,
    LimitResult,
    MeResult,
    SubsResult,
    UsersResult,
)
from tests.support import admin_samples as sample

HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "[bold red]markup[/] [link=http://x]",
    "\u202egnp.exe\u2066",
    "漢字" * 40,
    "long-" * 60,
    "\\xff\\xfe",
    "a b\tc\r\nd",
    "",
]
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
"""Colours, and no other control sequences."""


@pytest.fixture(autouse=True)
def users_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests independent of the host's users."""
    monkeypatch.setattr(pwd, "getpwuid", _getpwuid)
    user_names.user_name.cache_clear()


def _getpwuid(uid: int) -> Any:
    if uid == 0:
        return type("Entry", (), {"pw_name": "root"})
    raise KeyError(uid)


def shown(lines: list[Text], width: int = 80) -> list[str]:
    """The lines as a terminal shows them, without colours."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, markup=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    output = ESCAPE.sub("", console.file.getvalue())
    assert output.replace("\n", "").isprintable()
    rows = output.split("\n")[:-1]
    assert len(rows) == len(lines), "a line was wrapped"
    assert max(map(cell_len, rows), default=0) <= width
    return rows


def table(lines: list[Text], first_title: str, width: int = 80) -> list[dict[str, str]]:
    """The rows of the table that begins with this title; the last column has the rest."""
    rows = iter(shown(lines, width))
    titles = next(row for row in rows if row.split()[:1] == [first_title]).split()
    found = []
    for row in rows:
        if not row:
            break
        found.append(dict(zip(titles, row.split(maxsplit=len(titles) - 1), strict=True)))
    return found


class TestStats:
    def test_the_ledger_sums_up_the_bus(self) -> None:
        ledger = table(stats_lines(sample.stats(), 80), "LEDGER")
        assert {row["LEDGER"]: (row["MESSAGES"], row["BYTES"]) for row in ledger} == {
            "published": ("12.3k", "4.5MiB"),
            "accepted": ("61.7k", "22.5MiB"),
            "delivered": ("61k", "21.9MiB"),
            "discarded": ("715", "293KiB"),
            "replaced": ("2", "700B"),
            "undelivered": ("4", "1000B"),
            "backlog": ("6", "285KiB"),
        }
        rates = {row["LEDGER"]: (row["MESSAGES/S"], row["BYTES/S"]) for row in ledger}
        assert rates["published"] == ("1234", "461KiB")
        assert rates["delivered"] == ("12.3k", "4.5MiB")
        assert rates["discarded"] == ("0.4", "-")

    def test_unknown_rates_are_not_zero(self) -> None:
        stats = sample.stats(rates=sample.rates(window_seconds=0.0))
        ledger = table(stats_lines(stats, 80), "LEDGER")
        assert {(row["MESSAGES/S"], row["BYTES/S"]) for row in ledger} == {("-", "-")}

    def test_everything_else_is_there(self) -> None:
        text = "\n".join(shown(stats_lines(sample.stats(), 80)))
        for fact in (
            "/run/sbus.socket  up 3d04h",
            "1000 clients of 20 users, 345 subscriptions; stalls: 3 now, 8 in all",
            "hard 700, soft 12, unheld 3\n",
            "reserved 17, no-nul 2\n",
            "23.5k accepted, 980 stored, refused: too-many-connections 5\n",
            "87.5% of 12k look-ups in the cache\n",
            "p50 <=50µs, p99 <=1ms, max >1s, mean 2.35ms\n",
        ):
            assert fact in text

    def test_the_longest_operations_are_those_of_all_processes(self) -> None:
        rows = shown(stats_lines(sample.stats(), 80))
        start = next(at for at, row in enumerate(rows) if row.startswith("longest "))
        assert rows[start : start + 2] == [
            "longest      tick 20s, callback 12.5ms, hold 45µs",
            "  CPU time   callback 12ms, tick 3ms, hold 44µs",
        ]

    def test_many_longest_operations_are_wrapped(self) -> None:
        many = [sample.longest("0", kind, 0.123, 0.1) for kind in OPERATION_CPU_SECONDS_MAX]
        text = "\n".join(shown(stats_lines(sample.stats(longest_operations=many), 80)))
        for kind in OPERATION_CPU_SECONDS_MAX:
            assert f"{kind} 123ms" in text
            assert f"{kind} 100ms" in text

    def test_a_bar_shows_how_full_memory_is(self) -> None:
        stats = sample.stats(
            log=Fill(used_bytes=40, size_bytes=100), table=Fill(used_bytes=100, size_bytes=100)
        )
        rows = shown(stats_lines(stats, 80))
        (log,) = [row for row in rows if row.startswith("log ")]
        (full,) = [row for row in rows if row.startswith("table ")]
        assert (log.count("█"), log.count("░"), log.split()[-3:]) == (8, 12, ["40%", "of", "100B"])
        assert (full.count("█"), full.count("░")) == (20, 0)
        plain = [line.plain for line in stats_lines(stats, None)]
        assert "########............   40% of 100B" in "\n".join(plain)
        assert "\n".join(plain).replace("µ", "u").isascii()

    def test_memory_in_use_for_too_long_is_reported(self) -> None:
        rows = shown(stats_lines(sample.stats(log=None, table=None), 80))
        assert sum("in use for too long" in row for row in rows) == 2

    def test_a_line_for_each_worker(self) -> None:
        workers = [sample.worker(n, clients=n, pid=4_000 + n) for n in range(64)]
        found = table(stats_lines(sample.stats(workers=workers), 80), "WORKER")
        assert [(row["WORKER"], row["PID"], row["CLIENTS"]) for row in found] == [
            (str(n), str(4_000 + n), str(n)) for n in range(64)
        ]

    def test_draining_is_shown(self) -> None:
        assert "draining" in shown(stats_lines(sample.stats(draining=True), 80))[0]


def test_workers() -> None:
    workers = [
        sample.worker(0),
        sample.worker(1, state="silent", deaths=2, silence_seconds=4.26),
        sample.worker(2, state="starting", pid=0),
    ]
    found = table(workers_lines(workers, 120), "WORKER", 120)
    assert [(row["STATE"], row["DEATHS"], row["SILENT"]) for row in found] == [
        ("serving", "0", "0.3s"),
        ("silent", "2", "4.3s"),
        ("starting", "0", "0.3s"),
    ]
    assert found[0]["BUSY"] == "25%"
    assert (found[0]["CPU"], found[0]["MEMORY"], found[0]["P99"]) == ("12m34s", "50MiB", "<=1ms")
    assert (found[0]["IN/S"], found[0]["OUT/S"], found[0]["BACKLOG"]) == ("1234", "12.3k", "6")
    assert (found[2]["PID"], found[2]["UP"], found[2]["CPU"], found[2]["MEMORY"]) == ("-",) * 4


def test_version() -> None:
    facts = dict(row.split(maxsplit=1) for row in shown(version_lines(sample.version(), 80)))
    assert facts.pop("started").startswith(("1970-01-01", "1969-12-31"))
    assert facts == {
        "sbusd": "9.8.7",
        "protocol": "1",
        "python": "3.13",
        "step": "python",
        "address": "/run/sbus.socket",
        "dialect": "slash",
        "workers": "8",
        "pid": "77",
    }


class TestClients:
    def result(self, *clients: Any) -> ClientsResult:
        return ClientsResult(clients=list(clients), next=None, unanswered=[])

    def test_figures(self) -> None:
        lines = clients_lines(self.result(sample.client(4711, uid=1_234, pid=99)), 80)
        (row,) = table(lines, "CLIENT")
        assert row == {
            "CLIENT": "4711",
            "USER": "1234",
            "PID": "99",
            "SUBS": "7",
            "IN": "1111",
            "OUT": "5000",
            "LOST": "300",
            "BACKLOG": "100",
            "STATE": "ok",
            "PROGRAM": "lampd",
            **{name: row[name] for name in row.keys() & {"AGE", "WORKER"}},
        }

    def test_a_wide_terminal_shows_more(self) -> None:
        (row,) = table(clients_lines(self.result(sample.client(gid=55)), 200), "CLIENT", 200)
        assert (row["GID"], row["BYTES-IN"], row["BYTES-OUT"]) == ("55", "2.12MiB", "5.72MiB")
        assert (row["BYTES"], row["REFUSED"]) == ("20KiB", "9")
        assert row["POLICY"] == "queue/discard/queue"

    @pytest.mark.parametrize(
        ("activity", "state"),
        [
            (sample.activity(), "ok"),
            (sample.activity(stalled=True), "stalled"),
            (sample.activity(waits_for="room"), "waits"),
            (sample.activity(waits_for="rate"), "paced"),
            (sample.activity(waits_for="stall"), "held"),
            (None, "unknown"),
        ],
    )
    def test_states(self, activity: Any, state: str) -> None:
        (row,) = table(clients_lines(self.result(sample.client(activity=activity)), 80), "CLIENT")
        assert row["STATE"] == state
        assert row["IN"] == ("-" if activity is None else "1111")


def test_subscriptions() -> None:
    result = SubsResult(
        subscriptions=[sample.subscription(3), sample.subscription(4, pattern="", count=1)],
        next=None,
        unanswered=[],
    )
    found = table(subscriptions_lines(result, 80), "CLIENT")
    assert [(row["CLIENT"], row["USER"], row["TIMES"], row["PATTERN"]) for row in found] == [
        ("3", "root", "2", "lamps/*/state"),
        ("4", "root", "1", "''"),
    ]


class TestExplain:
    def result(self, **changes: Any) -> ExplainResult:
        fields: dict[str, Any] = {
            "key": "lamps/3/state",
            "secret": False,
            "recipients": [],
            "recipients_count": 0,
            "excluded": [],
            "excluded_count": 0,
            "workers": [],
            "stalled_count": 0,
            "unanswered": [],
        }
        return ExplainResult(**{**fields, **changes})

    def test_nobody(self) -> None:
        assert shown(explain_lines(self.result(), 80)) == [
            "lamps/3/state",
            "Nobody would receive a message under this key now.",
        ]

    def test_recipients_and_excluded_clients(self) -> None:
        result = self.result(
            recipients=[
                sample.recipient(1),
                sample.recipient(2, stalled=True, backlog=12_345, patterns=["lamps/", "a b"]),
            ],
            recipients_count=102,
            workers=[0, 2, 3],
            stalled_count=1,
            excluded=[
                sample.recipient(7, why_not="not-allowed", text="rules[3]"),
                sample.recipient(8, why_not="not-allowed", text="rules[3]"),
                sample.recipient(9, why_not="process-ended", text="it " * 50 + "ended"),
            ],
            excluded_count=4,
        )
        lines = explain_lines(result, 80)
        rows = shown(lines)
        text = " ".join(rows)
        assert "102 clients would receive a message under this key now" in text
        assert "now, on workers 0, 2 and 3." in text
        assert "1 of them has no room: publishers may be held back." in text
        assert "... and 100 more" in text
        assert "4 clients with a pattern that matches would not receive it:" in text
        assert text.count("not-allowed: rules[3] of the configuration denies it") == 1
        assert "process-ended: " + "it " * 50 + "ended" in text, "a reason is never cut short"
        first, second = table(lines[: rows.index("... and 100 more")], "CLIENT")
        assert (first["CLIENT"], first["STATE"], first["BACKLOG"]) == ("1", "ok", "0")
        assert (second["STATE"], second["BACKLOG"]) == ("stalled", "12.3k")
        assert second["PATTERNS"] == "lamps/ a\\x20b"

    def test_a_secret_key_is_marked(self) -> None:
        assert any("secret" in row for row in shown(explain_lines(self.result(secret=True), 80)))


class TestUsers:
    def test_use_and_limits(self) -> None:
        result = UsersResult(users=[sample.user(), sample.user(uid=1_234)], next=None)
        first, second = table(users_lines(result, 120), "USER", 120)
        assert (first["USER"], second["USER"]) == ("root", "1234")
        assert first == {
            "USER": "root",
            "CLIENTS": "12/1024",
            "SUBS": "345/131k",
            "SUB-BYTES": "64KiB/16MiB",
            "STEPS": "40/512",
            "BACKLOG": "1.2MiB/64MiB",
            "SOCKETS": "352KiB",
            "WAITING": "2KiB",
            "BLOCKING": "4",
            "HELD": "9s/10s",
            "MAX-IN/S": "100k",
            "LOST": "715",
        }

    def test_a_limit_that_is_near_stands_out(self) -> None:
        def styles(**changes: Any) -> list[str]:
            users = [sample.user(held_seconds=0.0, discarded=0, **changes)]
            _, line = users_lines(UsersResult(users=users, next=None), 120)
            return [str(span.style) for span in line.spans]

        assert styles(connections=819) == []
        assert styles(connections=820) == ["yellow"]
        assert styles(connections=1_024) == ["red"]

    def test_limits_are_exact_and_show_the_values_before_a_change(self) -> None:
        before = Limits().user
        shown_now = table(limit_lines(LimitResult(0, before, before), 80), "LIMIT")
        assert {row["LIMIT"]: row["NOW"] for row in shown_now} == {
            "connections_max": "1024",
            "subscriptions_max": "131072",
            "subscription_bytes_max": "16777216",
            "backlog_bytes_max": "67108864",
            "connections_per_second_max": "200",
            "match_steps_max": "512",
            "messages_per_second_max": "100000",
            "held_seconds_max": "10",
        }
        after = Limits(user_connections_max=5, user_held_seconds_max=0.25).user
        changed = table(limit_lines(LimitResult(0, before, after), 80), "LIMIT")
        assert [(row["BEFORE"], row["NOW"]) for row in changed if row["BEFORE"] != row["NOW"]] == [
            ("1024", "5"),
            ("10", "0.25"),
        ]

    def test_me(self) -> None:
        result = MeResult(
            user=sample.user(connections=3, subscriptions=345),
            clients=[sample.client(1)],
            subscriptions=[sample.subscription(1)],
            unanswered=[],
        )
        lines = me_lines(result, 80)
        rows = {row["root"]: row for row in table(lines, "root")}
        assert (rows["connections"]["USED"], rows["connections"]["LIMIT"]) == ("3", "1024")
        assert (rows["held-others"]["USED"], rows["held-others"]["LIMIT"]) == ("9s", "10s")
        assert (rows["lost"]["USED"], rows["messages/s"]["LIMIT"]) == ("715", "100k")
        text = "\n".join(shown(lines))
        assert "... and 2 clients more" in text
        assert "... and 343 subscriptions more" in text


LOAD: dict[str, Any] = {
    "messages_in_per_second": 1_234.5,
    "bytes_in_per_second": 4_718_592.0,
    "delivered_per_second": 12_345.0,
    "discarded_per_second": 0.5,
    "backlog": 65_536,
}
TOPS: dict[str, list[Any]] = {
    "client": [ClientLoad(client=1, uid=0, pid=2, program="p", worker=3, **LOAD)] * 2,
    "user": [UserLoad(uid=0, clients=7, **LOAD)] * 2,
    "worker": [WorkerLoad(worker=3, pid=0, clients=7, cpu_percent=93.6, **LOAD)] * 2,
}


@pytest.mark.parametrize(
    ("by", "first_title", "who"),
    [
        ("client", "CLIENT", {"CLIENT": "1", "USER": "root", "PID": "2", "PROGRAM": "p"}),
        ("user", "USER", {"USER": "root", "CLIENTS": "7"}),
        ("worker", "WORKER", {"WORKER": "3", "PID": "-", "CPU": "94%", "CLIENTS": "7"}),
    ],
)
def test_top(by: str, first_title: str, who: dict[str, str]) -> None:
    top = Top(by=by, sort="lost", seconds=2.0, rows=TOPS[by], unanswered=[1, 2])
    lines = top_lines(top, 80, keys=True)
    rows = table(lines, first_title)
    assert len(rows) == 2
    figures = {
        "IN/S": "1234",
        "BYTES/S": "4.5MiB",
        "OUT/S": "12.3k",
        "LOST/S": "0.5",
        "BACKLOG": "65.5k",
    }
    assert {**who, **figures}.items() <= rows[0].items()
    assert len(top_lines(top, 80, 7, keys=True)) == 6, "as many as fit, and the cursor"
    first, second, third = shown(lines)[:3]
    assert first == f"2 {by}s in 2s: 2469 in/s, 24.7k out/s"
    assert second == "worker 1 and 2 did not answer: some are missing"
    assert third.startswith("q quit")


def test_top_by_key_shows_missed_messages() -> None:
    rate = {"messages_in_per_second": 10.0, "bytes_in_per_second": 1_024.0}
    rows: list[Any] = [
        KeyLoad(prefix=prefix, delivered_per_second=20.0, **rate) for prefix in ("a b/", "", None)
    ]
    lines = top_lines(Top(by="key", sort="in", seconds=1.0, rows=rows, missed=3), 80, keys=True)
    found = table(lines, "IN/S")
    assert [row["PREFIX"] for row in found] == ["a b/", "''", "(other prefixes)"]
    assert {(row["IN/S"], row["BYTES/S"], row["OUT/S"]) for row in found} == {("10", "1KiB", "20")}
    assert shown(lines)[:3] == [
        "3 prefixes in 1s: 30 in/s, 60 out/s",
        "3 messages came too fast and are not counted",
        "q quit  sort by: i in  b bytes  o out",
    ]


def views(hostile: str) -> dict[str, Callable[[int | None], list[Text]]]:
    """All views that show text of strangers."""
    client = sample.client(program=hostile)
    subscription = sample.subscription(pattern=hostile, program=hostile)
    recipient = sample.recipient(patterns=[hostile] * 10, program=hostile)
    excluded = sample.recipient(why_not="not-allowed", text=hostile, program=hostile)
    clients = ClientsResult(clients=[client], next=None, unanswered=[])
    subs = SubsResult(subscriptions=[subscription], next=None, unanswered=[])
    me = MeResult(user=sample.user(), clients=[client], subscriptions=[subscription], unanswered=[])
    explained = ExplainResult(
        key=hostile,
        secret=True,
        recipients=[recipient],
        recipients_count=1,
        excluded=[excluded],
        excluded_count=1,
        workers=[0],
        stalled_count=0,
        unanswered=[],
    )
    top = Top(
        by="client",
        sort="in",
        seconds=1.0,
        rows=[ClientLoad(client=1, uid=0, pid=2, program=hostile, worker=3, **LOAD)],
    )
    return {
        "stats": lambda width: stats_lines(sample.stats(address=hostile), width),
        "clients": lambda width: clients_lines(clients, width),
        "subs": lambda width: subscriptions_lines(subs, width),
        "explain": lambda width: explain_lines(explained, width),
        "me": lambda width: me_lines(me, width),
        "top": lambda width: top_lines(top, width, keys=True),
    }


@pytest.mark.parametrize("hostile", HOSTILE, ids=repr)
@pytest.mark.parametrize("view", ["stats", "clients", "subs", "explain", "me", "top"])
def test_hostile_names_neither_act_on_the_terminal_nor_widen_a_line(
    view: str, hostile: str
) -> None:
    lines = views(hostile)[view]
    for width in (200, 80, 40, 20):
        shown(lines(width), width)
    for line in lines(None):
        assert line.plain.isprintable()
    if hostile.startswith("["):
        text = "\n".join(line.plain for line in lines(None)).replace("\\x20", " ")
        assert hostile in text

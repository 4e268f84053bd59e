"""The administrator's verbs against an admin socket that gives any reply, even malformed ones."""

import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.shell_completion import ShellComplete

from sbus.cli.sbusctl.command import sbusctl
from sbus.cli.sbusctl.shared_options import SelectedBus
from sbus.client.admin import AdminConnection
from sbus.limits import Limits
from sbus.protocol.admin import PAGE_MAX, Fault
from sbus.protocol.admin_results import (
    ClientsResult,
    DrainResult,
    ExplainResult,
    KickResult,
    LimitResult,
    MoveResult,
    ReloadResult,
    SubsResult,
    UsersResult,
    WorkersResult,
)
from tests.support import admin_samples as sample
from tests.support.fake_admin import FakeAdmin, encoded
from tests.support.threads import Task

CLIENTS = ClientsResult(clients=[sample.client(n) for n in (1, 12)], next=None, unanswered=[])
SUBS = SubsResult(subscriptions=[sample.subscription(1)], next=None, unanswered=[])
USERS = UsersResult(users=[sample.user()], next=None)
EXPLAINED = ExplainResult(
    key="k",
    secret=False,
    recipients=[sample.recipient(1)],
    recipients_count=1,
    excluded=[],
    excluded_count=0,
    workers=[0],
    stalled_count=0,
    unanswered=[],
)
ANSWERS: dict[str, Any] = {
    "stats": sample.stats(),
    "workers": WorkersResult([sample.worker()]),
    "clients": CLIENTS,
    "subs": SUBS,
    "users": USERS,
    "explain": EXPLAINED,
    "kick": KickResult(client=12, uid=0, pid=99, program="lampd"),
    "move": MoveResult(client=12, worker=3),
    "limit": LimitResult(0, Limits().user, Limits(user_connections_max=5).user),
    "reload": ReloadResult(["rules", "limits.log_bytes"], ["bus.workers"]),
    "drain": DrainResult(3),
    "version": sample.version(),
}
COMMANDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "stats": (("stats",), {}),
    "workers": (("workers",), {}),
    "clients": (("clients", "--user", "root"), {"uid": 0, "limit": PAGE_MAX}),
    "subs": (("subs", "a/\udcff*"), {"pattern": "a/\\xff*", "limit": PAGE_MAX}),
    "users": (("users",), {"limit": PAGE_MAX}),
    "explain": (("explain", "a b\\\n"), {"key": "a b\\\\\\x0a"}),
    "kick": (("kick", "12", "--text", "why"), {"client": 12, "text": "why"}),
    "move": (("move", "12", "3"), {"client": 12, "worker": 3}),
    "limit": (
        ("limit", "0", "connections_max=5", "held_seconds_max=0.5"),
        {"uid": 0, "limits": {"connections_max": 5, "held_seconds_max": 0.5}},
    ),
    "reload": (("reload",), {}),
    "drain": (("drain", "--timeout", "2.5"), {"timeout_seconds": 2.5}),
    "version": (("version",), {}),
}


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[FakeAdmin]:
    with FakeAdmin(tmp_path, dict(ANSWERS)) as admin:
        yield admin


def run(*words: str) -> int:
    """The exit status of a command, in this process."""
    try:
        sbusctl.main(list(words), prog_name="sbusctl", standalone_mode=False)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_verb_sends_its_request_and_prints_the_result_as_json(
    verb: str, admin: FakeAdmin, capfd: pytest.CaptureFixture[str]
) -> None:
    words, arguments = COMMANDS[verb]
    assert run("-a", admin.bus_address, *words, "--json") == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    assert output.count("\n") == 1
    assert output.isascii()
    assert json.loads(output) == msgspec.to_builtins(ANSWERS[verb])
    (request,) = admin.requests
    assert request["verb"] == verb
    defaults = {"verb": verb, "version": 1, "after": {"users": -1, "subs": None}.get(verb, 0)}
    defaults |= {"timeout_seconds": None}
    for name, value in request.items():
        assert value == arguments.get(name, defaults.get(name, value)), name
    assert arguments.keys() <= request.keys()


@pytest.mark.parametrize("verb", COMMANDS)
def test_without_a_terminal_the_output_is_plain_text(
    verb: str,
    admin: FakeAdmin,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    assert run("--admin-address", admin.address, *COMMANDS[verb][0]) == 0
    output, errors = capfd.readouterr()
    assert errors == ""
    assert output.replace("\n", "").isprintable()
    assert output.replace("µ", "u").isascii(), "bars and ellipses are for terminals"
    assert not any(line.endswith(" ") for line in output.splitlines())


def test_actions_print_what_was_done(admin: FakeAdmin, capfd: pytest.CaptureFixture[str]) -> None:
    for verb, said in {
        "kick": "client 12 is disconnected: root, pid 99, lampd\n",
        "move": "client 12 is served by worker 3\n",
        "drain": "3 clients left\n",
        "reload": "in force now: rules and limits.log_bytes\n"
        "unchanged until a restart or an upgrade: bus.workers\n",
    }.items():
        assert run("-a", admin.bus_address, *COMMANDS[verb][0]) == 0
        assert capfd.readouterr().out == said


def test_the_admin_address_may_come_from_the_environment(
    admin: FakeAdmin, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBUS_ADMIN_ADDRESS", admin.address)
    assert run("version") == 0
    assert "slash" in capfd.readouterr().out


def test_all_pages_of_a_list_are_printed(
    admin: FakeAdmin, capfd: pytest.CaptureFixture[str]
) -> None:
    def page(request: dict[str, Any]) -> ClientsResult:
        after = request["after"]
        return ClientsResult(
            clients=[sample.client(after + 1), sample.client(after + 2)],
            next=after + 2 if after < 4 else None,
            unanswered=[after // 2],
        )

    admin.answers["clients"] = page
    assert run("-a", admin.bus_address, "clients", "--json") == 0
    output, errors = capfd.readouterr()
    found = json.loads(output)
    assert [client["client"] for client in found["clients"]] == [1, 2, 3, 4, 5, 6]
    assert (found["next"], found["unanswered"]) == (None, [0, 1, 2])
    assert errors == "sbusctl: workers 0, 1 and 2 did not answer in time: something is missing\n"


def test_watch_prints_again_after_the_interval(
    admin: FakeAdmin, capfd: pytest.CaptureFixture[str]
) -> None:
    left: Iterator[Any] = iter([sample.stats(clients=1), sample.stats(clients=2), b""])
    admin.answers["stats"] = lambda _request: next(left)
    words = ("stats", "--watch", "--interval", "0.1", "--json")
    assert run("-a", admin.bus_address, *words) == 1
    output, errors = capfd.readouterr()
    assert [json.loads(line)["clients"] for line in output.splitlines()] == [1, 2]
    assert errors == "sbusctl: the bus has ended or was upgraded, or has closed this connection\n"


# -- what goes wrong -------------------------------------------------------------------------------
def one_line(capfd: pytest.CaptureFixture[str]) -> str:
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors.startswith("sbusctl: ")
    assert errors.count("\n") == 1
    assert errors.rstrip("\n").isprintable()
    return errors


def test_a_missing_admin_socket_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for verb, (words, _) in COMMANDS.items():
        assert run("-a", str(tmp_path / "none"), *words) == 1, verb
        socket = "none" if verb == "version" else "none.admin"  # without it, the bus is asked
        assert f"cannot connect to {tmp_path}/{socket}:" in one_line(capfd)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Fault("not-found", "there is no client 12"), "there is no client 12 (not-found)"),
        (Fault("x", "\x1b[2J\n[bold]"), "\\x1b[2J\\n[bold] (x)"),
        (b"", "or has closed this connection"),
        (b"garbage\x1b[2J", "is no admin socket"),
        (b'{"version":1,"id":1,"result":{"client":"x"}}', "sent a result of another version"),
        (b'{"version":1,"id":1,"result":[]}', "sent a result of another version"),
        (b"\xff" * 100_000, "is no admin socket"),
    ],
    ids=repr,
)
def test_a_fault_or_malformed_reply_is_one_line(
    answer: Any, said: str, admin: FakeAdmin, capfd: pytest.CaptureFixture[str]
) -> None:
    admin.answers["kick"] = answer
    assert run("-a", admin.bus_address, "kick", "12") == 1
    assert said in one_line(capfd)


def test_a_missing_reply_is_one_line(
    admin: FakeAdmin, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect_impatiently(selected: SelectedBus, _seconds: float = 0) -> AdminConnection:
        return AdminConnection(selected.address, timeout_seconds=0.05)

    monkeypatch.setattr(SelectedBus, "connect_admin", connect_impatiently)
    for verb, (words, _) in COMMANDS.items():
        admin.answers[verb] = None
        assert run("-a", admin.bus_address, *words) == 1
        assert "gave no answer within" in one_line(capfd)


def test_the_reason_is_printed_if_the_bus_closes_before_it_reads_the_request(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = str(tmp_path / "bus.admin")
    refusal = encoded(Fault("not-allowed", "not you"), 0)

    def refuse() -> None:
        client, _ = listener.accept()
        with client:
            assert select.select([client], [], [], 10)[0], "no question"
            client.send(refusal)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        task = Task(refuse)
        assert run("--admin-address", address, "stats") == 1
        task.join()
    assert one_line(capfd) == "sbusctl: not you (not-allowed)\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("limit", "0", "connection_max=5"), "did you mean connections_max"),
        (("limit", "0", "log_bytes=5"), "a user has no limit 'log_bytes'"),
        (("limit", "0", "xyzzy=5"), "choose from connections_max, "),
        (("limit", "0", "connections_max=0"), "connections_max cannot be '0': expected"),
        (("limit", "no-such-user"), "there is no user 'no-such-user'"),
        (("clients", "--user", "4294967295"), "user id 4294967295 is out of range"),
        (("clients", "--user", "\x1b[2J"), "there is no user '\\x1b[2J'"),
    ],
)
def test_invalid_arguments_are_reported_without_a_request(
    words: tuple[str, ...], said: str, admin: FakeAdmin, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("-a", admin.bus_address, *words) == 1
    assert said in one_line(capfd)
    assert admin.requests == []


# -- completion ------------------------------------------------------------------------------------
def completed(*words: str) -> list[str]:
    """The completions of the last word."""
    shell = ShellComplete(sbusctl, {}, "sbusctl", "_SBUSCTL_COMPLETE")
    *before, begun = words
    return [item.value for item in shell.get_completions(list(before), begun)]


def test_completion_asks_the_bus(admin: FakeAdmin) -> None:
    at = ("-a", admin.bus_address)
    assert completed(*at, "kick", "") == ["1", "12"]
    assert completed(*at, "kick", "12") == ["12"]
    assert completed(*at, "limit", "ro") == ["root"]
    assert completed(*at, "clients", "--user", "") == ["root"]
    assert completed(*at, "limit", "root", "held") == ["held_seconds_max="]
    assert {"kick", "limit", "stats"} <= set(completed(*at, ""))


@pytest.mark.parametrize(
    "words", [("-a",), ("pub", "--file"), ("metrics", "--textfile"), ("export",), ("record",)]
)
def test_completion_offers_files_and_directories(words: tuple[str, ...]) -> None:
    shell = ShellComplete(sbusctl, {}, "sbusctl", "_SBUSCTL_COMPLETE")
    (item,) = shell.get_completions(list(words), "x")
    assert item.type in ("file", "dir")


@pytest.mark.parametrize("answer", [b"", b"garbage", Fault("failed", "no")])
def test_completion_is_silent_without_an_answer(
    answer: Any, admin: FakeAdmin, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    admin.answers["clients"] = admin.answers["users"] = answer
    assert completed("-a", admin.bus_address, "kick", "") == []
    assert completed("-a", admin.bus_address, "limit", "") == []
    assert completed("-a", os.fspath(tmp_path / "none"), "kick", "") == []
    assert capfd.readouterr() == ("", "")

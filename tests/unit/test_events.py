"""The kinds of events: each is documented, emitted somewhere, and has a text of its own fields."""

import ast
import re
import string
from pathlib import Path

import pytest

from sbus.protocol import events
from sbus.protocol.event import Client, Event, Process
from sbus.protocol.events import (
    KINDS,
    ClientDisconnected,
    ClientKicked,
)

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENT = (PROJECT / "docs/events.md").read_text()
PRIORITIES = {3: "error", 4: "warning", 5: "notice", 6: "info", 7: "debug"}

SAID = {
    match[1]: match[0]
    for match in re.finditer(r"^### `([a-z-]+)`\n(?:(?!^#).*\n?)*", DOCUMENT, re.MULTILINE)
}
"""The part of the document about each event."""


def classes_made() -> set[str]:
    """Names of all that is called in the broker."""
    called = set()
    for path in (PROJECT / "sbus/broker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp):
                called |= {ast.unparse(node.value.body), ast.unparse(node.value.orelse)}
    return called


def fields_of(kind: type[Event]) -> list[str]:
    """The names of the fields of an event of this kind."""
    who = kind.__annotations__.get("who")
    own = [name for name in kind.__struct_fields__ if name != "who"]
    return [*(who.__struct_fields__ if who else ()), *own]


def test_every_event_is_documented_and_no_other() -> None:
    assert SAID.keys() == KINDS.keys()
    assert len(SAID) == len(re.findall(r"^### ", DOCUMENT, re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_documented_fields_and_priorities_are_right(kind: type[Event]) -> None:
    _, facts, text, *_ = SAID[kind.id()].split("\n\n")
    logged = "logged" if kind.logged else "not logged"
    assert facts.startswith(f"*{PRIORITIES[kind.priority]}, {logged}.* Fields: ")
    fields = re.findall(r"`(\w+)`", facts)
    assert sorted(fields) == sorted(fields_of(kind))
    assert len(text.split()) >= 5


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_text_needs_nothing_but_the_fields(kind: type[Event]) -> None:
    names = {name for _, name, _, _ in string.Formatter().parse(kind.template) if name}
    assert names <= set(fields_of(kind))
    assert not names & {"time", "event", "priority", "text"}


def test_every_event_is_emitted_somewhere() -> None:
    told = classes_made()
    assert {kind.__name__ for kind in KINDS.values()} <= told


def test_ids_are_the_names_in_kebab_case() -> None:
    assert events.WorkerDied.id() == "worker-died"
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)+|draining", name) for name in KINDS)


def test_fields_of_a_client_are_fields_of_the_event() -> None:
    who = Client(client=4, uid=1000, gid=100, pid=77, program="")
    event = ClientDisconnected(who=who, worker=1, reason="kicked")
    assert event.fields() == {
        "client": 4,
        "uid": 1000,
        "gid": 100,
        "pid": 77,
        "program": "",
        "worker": 1,
        "reason": "kicked",
    }
    assert event.text() == "client 4 of uid 1000, pid 77 (ended) is gone: kicked"
    by_itself = ClientDisconnected(who=who, worker=1, reason="")
    assert by_itself.text() == "client 4 of uid 1000, pid 77 (ended) is gone"
    names = {0: "root", 1000: "al\nice"}
    assert by_itself.text(names) == "client 4 of uid 1000 (al\\nice), pid 77 (ended) is gone"
    assert Process.__struct_fields__ == ("uid", "gid", "pid", "program")


def test_every_text_is_one_line_without_terminal_controls() -> None:
    who = Client(client=4, uid=1000, gid=100, pid=77, program="x")
    event = ClientKicked(who=who, why="a\nb\x1b[31m\x85é\udcff")
    assert event.text().endswith(r"kicked: a\nb\x1b[31m\x85é\udcff")

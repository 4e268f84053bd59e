"""Every code that a client can receive is in the protocol's documentation, and no other."""

import ast
import re
from pathlib import Path

from sbus.protocol.codes import CONNECTION_CODES, END_TEXTS, FINAL_CODES, PACKET_CODES

PROJECT = Path(__file__).resolve().parents[2]
CODE_ARGUMENTS = {"Refusal": 0, "Misbehaviour": 0, "QuotaReached": 0, "self._reject": 1}
"""The calls in the sources that name a code, and the place of the code among their arguments."""


def documented() -> set[str]:
    text = (PROJECT / "docs/protocol.md").read_text()
    section = text.partition("## What is refused, and what disconnects")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z]+(?:-[a-z]+)+|draining|kicked|reserved|stopping)`", section))


def documented_to_disconnect() -> set[str]:
    text = (PROJECT / "docs/protocol.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|.*\| disconnected \|$", text, re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}


def used() -> set[object]:
    """The codes that the sources spell out."""
    codes: set[object] = set()
    for path in (PROJECT / "sbus").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) not in CODE_ARGUMENTS:
                continue
            code = call.args[CODE_ARGUMENTS[ast.unparse(call.func)]]
            if isinstance(code, ast.Constant):
                codes.add(code.value)
            elif isinstance(code, ast.JoinedStr):
                end = ast.literal_eval(code.values[-1])
                codes |= {f"{what}{end}" for what in ("key", "pattern")}
    return codes


def test_every_code_is_documented() -> None:
    assert documented() == {*PACKET_CODES, *CONNECTION_CODES, *END_TEXTS}


def test_clients_do_not_come_back_after_what_disconnects_them_but_slowness() -> None:
    assert documented_to_disconnect() == {*FINAL_CODES, "too-slow"}


def test_every_code_in_the_sources_is_counted() -> None:
    assert {"reserved", "no-nul", "key-too-long", "too-many-users"} <= used()
    assert used() <= {*PACKET_CODES, *CONNECTION_CODES}

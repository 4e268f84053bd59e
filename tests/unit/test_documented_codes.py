"""Every code that a client can meet stands in the protocol's documentation, and no other does."""

import ast
import re
from pathlib import Path

from sbus.protocol.codes import CONNECTION_CODES, PACKET_CODES

PROJECT = Path(__file__).resolve().parents[2]
FAULTS = {"Refusal", "Misbehaviour", "QuotaReached"}


def documented() -> set[str]:
    text = (PROJECT / "docs/protocol.md").read_text()
    section = text.partition("## What is refused, and what disconnects")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z]+(?:-[a-z]+)+|kicked|reserved)`", section))


def raised() -> set[object]:
    """The codes that faults are made with, where they are spelled out."""
    codes: set[object] = set()
    for path in (PROJECT / "sbus").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in FAULTS:
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    codes.add(code.value)
                elif isinstance(code, ast.JoinedStr):
                    end = ast.literal_eval(code.values[-1])
                    codes |= {f"{what}{end}" for what in ("key", "pattern")}
    return codes


def test_every_code_is_documented() -> None:
    # Who is none of the users that the bus is for is turned away in silence.
    told = {*PACKET_CODES, *CONNECTION_CODES} - {"not-admitted"}
    assert documented() == told


def test_every_fault_has_a_code_that_is_counted() -> None:
    assert raised() <= set(PACKET_CODES)

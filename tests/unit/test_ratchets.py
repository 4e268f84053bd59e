"""Counts of what tests should avoid. They only fall: a change that lowers one writes it down here.

A test that reads a private attribute, or replaces one of the product, has to be rewritten with the
product. One that sleeps is slow, or wrong on a busy machine.
"""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

RATCHETS = {
    "private attributes": 211,
    "patched attributes": 187,
    "sleeps": 48,
}
_OWN = {"self", "cls"}
_PATCHING = {"object", "dict", "multiple"}
"""Methods of `unittest.mock.patch`."""


def _names(node: ast.expr) -> list[str]:
    """The names of a dotted expression."""
    if isinstance(node, ast.Attribute):
        return [*_names(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _offences(tree: ast.AST) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = _names(node.value)[-1]
            found["private attributes"] += _is_private(node.attr) and owner not in _OWN
        elif isinstance(node, ast.ImportFrom):
            found["private attributes"] += sum(_is_private(name.name) for name in node.names)
        elif isinstance(node, ast.Call):
            *owners, name = _names(node.func)
            is_patching = (
                name == "patch"
                or (name == "setattr" and bool(owners))
                or (name in _PATCHING and "patch" in owners)
            )
            found["patched attributes"] += is_patching
            found["sleeps"] += name == "sleep"
    return found


@cache
def _found() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in TESTS.rglob("*.py"):
        found.update(_offences(ast.parse(path.read_text())))
    return found


@pytest.mark.parametrize("what", RATCHETS)
def test_what_tests_should_not_do_becomes_less(what: str) -> None:
    found, known = _found()[what], RATCHETS[what]
    assert found <= known, f"{found - known} more {what} than before; do without them"
    assert found == known, f"{known - found} fewer {what}: write {found} into RATCHETS"


def test_each_kind_is_counted() -> None:
    text = """
self._own; cls._own; other._private; os._exit(1); other.__dict__
from module import _private, public, __version__; from module._private import public
monkeypatch.setattr(module, "name", 1); patch.object(module, "name"); patch("module.name")
patched.setattr(module, "name", 1); setattr(own, "name", 1)
time.sleep(1); await trio.sleep(1)
"""
    counted = dict(_offences(ast.parse(text)))
    assert counted == {"private attributes": 3, "patched attributes": 4, "sleeps": 2}

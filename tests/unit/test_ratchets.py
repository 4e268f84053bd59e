"""What the tests should not do, counted: the figures only fall. Who lowers one writes it down here.

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
    "private attributes": 273,
    "patched attributes": 199,
    "sleeps": 66,
}
_OWN = {"self", "cls"}
_PATCHING = {"setattr", "object", "dict", "multiple"}
"""Methods of `monkeypatch` and of `unittest.mock.patch`."""


def _names(node: ast.expr) -> list[str]:
    """The names of a dotted expression."""
    if isinstance(node, ast.Attribute):
        return [*_names(node.value), node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


def _offences(tree: ast.AST) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = _names(node.value)[-1]
            is_private = node.attr.startswith("_") and not node.attr.endswith("__")
            found["private attributes"] += is_private and owner not in _OWN
        elif isinstance(node, ast.Call):
            *owners, name = _names(node.func)
            is_patching = name == "patch" or (
                name in _PATCHING and bool({"patch", "monkeypatch"} & set(owners))
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
    assert _found()[what] == RATCHETS[what]


def test_each_kind_is_counted() -> None:
    text = """
self._own; cls._own; other._private; os._exit(1); other.__dict__
monkeypatch.setattr(module, "name", 1); patch.object(module, "name"); patch("module.name")
time.sleep(1); await trio.sleep(1)
"""
    counted = dict(_offences(ast.parse(text)))
    assert counted == {"private attributes": 2, "patched attributes": 3, "sleeps": 2}

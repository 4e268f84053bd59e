"""The commands of the tutorial work as written, and print what the text shows."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bus import PROJECT
from tests.support.terminals import Terminals, two_terminals
from tests.support.threads import wait_until

TUTORIAL = (PROJECT / "docs/tutorial.md").read_text()
UNTIL_IT_LISTENS = """until sbusctl subs --json | grep -q '"rooms/"'; do :; done"""


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    with two_terminals(tmp_path) as two:
        yield two


def test_the_tutorial(terminals: Terminals, tmp_path: Path) -> None:
    parts = re.split(r"\n```(\w*)\n(.*?)```\n", TUTORIAL, flags=re.DOTALL)
    shown = []
    for before, language, block in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        paragraph = before.strip().rpartition("\n\n")[2]
        introduction = re.split(r"[.;]\s", paragraph)[-1]
        if language == "python":
            (name,) = re.findall(r"`(\w+\.py)`", introduction)
            (tmp_path / name).write_text(block)
        elif language == "console":
            typed = "\n".join(re.findall(r"^\$ (.*)$", block, re.MULTILINE))
            typed = typed.replace("/tmp/bus", f"{tmp_path}/bus")
            typed = typed.replace("sleep 1", UNTIL_IT_LISTENS)
            if "second terminal" in introduction:
                terminals.in_second(typed)
            else:
                assert_shown(block, terminals.first(typed))
        elif not language:
            shown.append(block)
            assert terminals.close() == block
    assert shown == ["lamps/3/state on\nlamps/4/state off\n"]
    wait_until(lambda: not (tmp_path / "bus").exists(), "the bus removes its sockets")


def assert_shown(block: str, printed: str) -> None:
    """The lines of the tutorial are there; numbers and widths may differ, and who alice is."""
    for line in block.split("\n"):
        if line and not line.startswith(("$", "...")) and "alice" not in line:
            words = re.escape(line.removesuffix("...").strip().replace("/tmp/bus", "@"))
            pattern = re.sub(r"\d+", r"\\d+", re.sub(r"(\\ )+", r" +", words)).replace("@", ".*")
            assert re.search(f"^ *{pattern}", printed, re.MULTILINE), f"{line!r} not in {printed}"

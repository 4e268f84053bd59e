"""A recorder may die before any of its writes, and every row is there once.

All of the writes: `python -m tests.pipeline.recorder.deaths_at_writes`.
"""

from tests.pipeline.recorder.deaths_at_writes import MODULE
from tests.support.deaths import preloaded
from tests.support.needs import needs_tool

pytestmark = needs_tool("gcc", "gcc")


def test_every_row_is_there_once() -> None:
    assert preloaded(MODULE, ["--first", "5", "--step", "67"]) == 0

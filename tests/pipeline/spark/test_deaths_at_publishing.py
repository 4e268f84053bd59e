"""A driver may die before any of its writes while it publishes, and every row is known.

All of the writes: `python -m tests.pipeline.spark.deaths_at_publishing`.
"""

from tests.pipeline.spark.deaths_at_publishing import MODULE
from tests.support.deaths import preloaded
from tests.support.needs import needs_tool

pytestmark = needs_tool("gcc", "gcc")


def test_rows_are_published_twice_only_where_the_ledger_cannot_know() -> None:
    """The ledger is saved in five calls, so each saving meets a death."""
    assert preloaded(MODULE, ["1", "5"]) == 0

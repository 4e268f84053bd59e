"""What a bus says of itself at the end of a section, against what its clients know."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.protocol.player import Tally


def difference(traffic: Mapping[str, Any], before: Counter[str], expected: Counter[str]) -> str:
    """How the counts of the bus differ from those before and what a section expects; "" if not."""
    refused = Counter(traffic["refused"]) - before
    if refused != expected:
        return f"the bus refused or ignored {dict(refused)}, not {dict(expected)}"
    parts = ("delivered", "replaced", "undelivered", "backlog")
    known = sum(traffic[part] for part in parts) + sum(traffic["discarded"].values())
    accepted = traffic["accepted"]
    return "" if accepted == known else f"the bus accounts for {known} of {accepted} messages"


def different_fields(record: Mapping[str, Any], text: str) -> str:
    """Which of the fields that are written here the record has otherwise; "" if none."""
    expected = dict(word.split("=", 1) for word in text.split())
    flat = {**record, **(record.get("activity") or {})}
    found = {name: str(flat[name]) for name in expected}
    return "" if found == expected else f"it has {found}"


def check_ledger(
    activity: Mapping[str, Any], tally: Tally, has_barriers: bool, is_recent: bool
) -> None:
    """`has_barriers`: others' barriers may go to this client, also while this is checked.
    `is_recent`: its figures may begin with the worker that serves it now."""
    parts = ("delivered", "discarded", "replaced", "backlog")
    counted = sum(activity[part] for part in parts)
    assert activity["accepted"] == counted, f"{counted} of {activity['accepted']} are accounted for"
    expected = {"replaced": tally.replaced, "backlog": 0}
    if not tally.is_uncertain:
        expected["discarded"] = tally.lost
    if not has_barriers:
        expected["delivered"] = tally.received
    found = {name: activity[name] for name in expected}
    is_as_told = all(found[name] <= expected[name] for name in found) if is_recent else False
    assert is_as_told or found == expected, f"the bus counted {found}, the client {expected}"

"""What a history amounts to, in numbers that add up over runs."""

import textwrap
from collections.abc import Iterable
from typing import Any

from tests.history.history import History
from tests.history.losses import accountable


def figures_of(history: History) -> dict[str, int]:
    connections = history.connections.values()
    accounts = [account for _, account in accountable(history) if account.is_exact]
    return {
        "connections": len(connections),
        "messages": len(history.messages),
        "received": sum(len(one.inbox) for one in connections),
        "receipts": sum(len(one.receipts) for one in connections),
        "barriers": sum(len(one.replies) for one in connections),
        "deaths": len(history.positions("death")),
        "restarts": len(history.positions("restart", "new-bus")),
        "losses told": sum(account.told for account in accounts),
        "certainly missing": sum(len(account.must) for account in accounts),
        "perhaps missing": sum(len(account.may) for account in accounts),
        "told too many": sum(max(0, it.told - len(it.may)) for it in accounts),
        "packets lost": sum(one.packets_lost for one in connections),
        "ended": sum(one.ended_at is not None for one in connections),
    }


def summary(tree: str, done: dict[str, Any]) -> list[str]:
    """The last lines of a campaign: what was done with a tree, of which the state has `done`."""
    figures = done["figures"]

    def count(name: str) -> int:
        return int(figures.get(name, 0))

    violations = sum(len(failure["violations"]) for failure in done["failures"])
    failed = _ranges(failure["seed"] for failure in done["failures"])
    lines = [
        f"tree {tree}: {len(done['seeds'])} seeds in {done['seconds']:.0f} s",
        f"seeds {_ranges(done['seeds']) or 'none'}",
        f"violations: {violations}" + (f", of the seeds {failed}" if failed else ""),
        f"upgrades: {count('upgrades done')} done of {count('upgrades tried')} tried, "
        f"{count('upgrades out of time')} out of time",
        f"moves: {count('moves done')} done of {count('moves tried')} tried",
        f"deaths: {count('deaths')} of workers, {count('restarts')} of buses",
        f"messages: {count('messages')} sent, {count('received')} received, "
        f"{count('receipts')} receipts",
    ]
    for name, why in _RARE.items():
        lines.append(f"{name}: {count(name)} times" if count(name) else f"{name}: never ({why})")
    return [part for line in lines for part in textwrap.wrap(line, 80, subsequent_indent="  ")]


_RARE = {
    "full disk": "needs root, a mount, and ten seeds",
    "descriptors used up": "needs a seed with few descriptors",
}
"""What may not happen in a campaign, and why."""


def _ranges(seeds: Iterable[int]) -> str:
    """Such as "1-3, 7"."""
    ranges: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1][1] = seed
        else:
            ranges.append([seed, seed])
    return ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)

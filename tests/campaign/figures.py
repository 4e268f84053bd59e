"""What a history amounts to, in numbers that add up over runs."""

from tests.campaign.history import History
from tests.campaign.losses import accountable


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

"""A short run of the campaign: a mesh of three over a cluster whose servers are killed."""

from pathlib import Path

from tests.bridge import campaign
from tests.support.bridges import needs_nats

pytestmark = needs_nats


def test_what_is_received_and_admitted_is_what_was_sent(tmp_path: Path) -> None:
    for account in campaign.run(tmp_path, 2, 1):
        assert sum(account.received.values()) > 0

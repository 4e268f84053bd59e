"""A bridge that is killed, with a real systemd that keeps its connections."""

import pytest

from tests.deploy import booted, bridge_probe
from tests.deploy.bridge_probe import KILLS, MESSAGES
from tests.support.bridges import needs_nats
from tests.support.descriptor_store import needs_refusal

pytestmark = [
    pytest.mark.skipif(booted.why_not() is not None, reason=str(booted.why_not())),
    needs_refusal,
    needs_nats,
]


def test_durable_messages_cross_once_however_often_it_is_killed() -> None:
    seen = booted.boot(bridge_probe.__name__)
    assert seen["restarts"] == KILLS, seen["stderr"]
    assert seen["there"] == list(range(MESSAGES))
    assert seen["here"] == [str(number) for number in range(MESSAGES)]
    assert seen["stored"] == 2

"""What administrators have changed of users' limits goes on at the bus that takes over."""

from msgspec.structs import replace

from sbus.broker.config.settings import BusSettings
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.limits import Limits, UserLimits
from sbus.shared.account_book import AccountBook
from tests.unit.shared.memories import account_memory

LIMITS = Limits()
CONNECTED, ABSENT = 1_000, 2_000


def user_limits_of(configured: dict[int, UserLimits]) -> tuple[EffectiveUserLimits, AccountBook]:
    """Of a bus with these limits of users in its configuration."""
    book = AccountBook(account_memory(1, LIMITS), 1, LIMITS)
    settings = BusSettings(workers=1, limits=LIMITS, user_limits=configured)
    made = EffectiveUserLimits(settings, book)
    made.apply_settings(settings)
    return made, book


def test_limits_that_were_not_changed_are_as_in_the_new_configuration() -> None:
    old, _ = user_limits_of({})
    old.change(CONNECTED, {"connections_max": 7})
    configured = replace(LIMITS.user, connections_max=3, messages_per_second_max=9)
    new, _ = user_limits_of({CONNECTED: configured})
    for record in old.records():
        new.restore(record)
    assert new.limits_of(CONNECTED) == replace(configured, connections_max=7)

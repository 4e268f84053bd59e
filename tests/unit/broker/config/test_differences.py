"""What a running bus can change: every option and limit either can or needs a restart.

Which ones can: `tests/broker/test_reload_settings.py`.
"""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from sbus.broker.config.access_policy import AccessRule, Permission
from sbus.broker.config.differences import changes
from sbus.broker.config.resolution import Configuration
from sbus.broker.config.settings import BusSettings
from sbus.bus_options import OPTIONS, reloadable_options
from sbus.limits import RELOADABLE_LIMITS, Limits
from sbus.protocol.controls import FloodControl, Hard

LIVE_BUS = reloadable_options(without_mode=False)
MODE = reloadable_options(without_mode=True) - LIVE_BUS
OPTION_NAMES = [option.name for option in OPTIONS]


def configuration(**more: Any) -> Configuration:
    options = dict.fromkeys(OPTION_NAMES, "before")
    settings = BusSettings(
        workers=2, rules=(AccessRule(allows=True, permissions=frozenset({Permission.BLOCK})),)
    )
    return replace(Configuration(settings=settings, options=options), **more)


def with_option(field: str, *, checks_group: bool = False) -> Configuration:
    before = configuration()
    return replace(before, options={**before.options, field: "after"}, checks_group=checks_group)


def with_settings(**more: Any) -> Configuration:
    before = configuration()
    return replace(before, settings=replace(before.settings, **more))


def test_equal_configurations_have_no_differences() -> None:
    found = changes(configuration(), configuration())
    assert (found.applied, found.needs_restart) == ([], [])
    assert found.merged == configuration()


@pytest.mark.parametrize("field", OPTION_NAMES)
@pytest.mark.parametrize("checks_group", [False, True])
def test_each_option(field: str, checks_group: bool) -> None:
    found = changes(configuration(), with_option(field, checks_group=checks_group))
    live = field in LIVE_BUS or (field in MODE and checks_group)
    assert (found.applied, found.needs_restart) == (
        ([f"bus.{field}"], []) if live else ([], [f"bus.{field}"])
    )
    assert found.merged.options[field] == ("after" if live else "before")
    if not live:
        again = changes(found.merged, with_option(field, checks_group=checks_group))
        assert again.needs_restart == [f"bus.{field}"], "until the restart"


@pytest.mark.parametrize("field", Limits.__struct_fields__)
def test_each_limit(field: str) -> None:
    value = getattr(Limits(), field) + 1
    found = changes(configuration(), with_settings(limits=Limits(**{field: value})))
    live = field in RELOADABLE_LIMITS
    assert (found.applied, found.needs_restart) == (
        ([f"limits.{field}"], []) if live else ([], [f"limits.{field}"])
    )
    assert getattr(found.merged.settings.limits, field) == (value if live else value - 1)


def test_admission_and_flood_control_change() -> None:
    more = {
        "admit_uids": frozenset({7}),
        "admit_gids": frozenset({8}),
        "flood_control": FloodControl(hard=Hard.ERROR),
        "exit_when_empty": True,
    }
    settings = changes(configuration(), with_settings(**more)).merged.settings
    assert {name: getattr(settings, name) for name in more} == more
    fixed = {"workers": 3, "dialect": "dot", "disconnect_descriptors": True}
    assert changes(configuration(), with_settings(**fixed)).merged.settings == (
        configuration().settings
    )


def test_rules_wait_for_a_restart_if_the_dialect_changed() -> None:
    found = changes(configuration(), with_settings(rules=()))
    assert (found.applied, found.needs_restart) == (["rules"], [])
    assert found.merged.settings.rules == ()
    other = with_settings(rules=(), dialect="dot")
    found = changes(configuration(), replace(other, options={**other.options, "dialect": "dot"}))
    assert (found.applied, found.needs_restart) == ([], ["bus.dialect", "rules"])
    assert found.merged.settings.rules == configuration().settings.rules


def of_users(limits: Limits, names: dict[int, str], **fields: dict[int, int]) -> Configuration:
    """Where these users have other limits than `limits` gives everybody."""
    tables: dict[int, dict[str, int]] = {uid: {} for uid in names}
    for field, by_uid in fields.items():
        for uid, value in by_uid.items():
            tables[uid][field] = value
    user_limits = {uid: replace(limits.user, **table) for uid, table in tables.items()}
    before = with_settings(limits=limits, user_limits=user_limits)
    return replace(before, user_names=names)


def test_changed_limits_of_users_are_named_as_in_the_file() -> None:
    one = of_users(Limits(), {1: "alice"}, connections_max={1: 5})
    both = {1: "alice", 2: "bob"}
    two = of_users(Limits(), both, connections_max={1: 6}, held_seconds_max={2: 0})
    of_both = ["users.alice.connections_max", "users.bob.held_seconds_max"]
    assert changes(configuration(), one).applied == ["users.alice.connections_max"]
    assert changes(one, two).applied == of_both
    found = changes(two, configuration())
    assert found.applied == of_both
    assert found.merged.settings.user_limits == {}


def test_a_change_for_everybody_is_not_a_change_for_a_user() -> None:
    fewer = msgspec.structs.replace(Limits(), user_connections_max=9)
    before = of_users(Limits(), {1: "alice"}, subscriptions_max={1: 5})
    after = of_users(fewer, {1: "alice"}, subscriptions_max={1: 5})
    found = changes(before, after)
    assert found.applied == ["limits.user_connections_max"]
    assert found.merged.settings.limits_of(1).connections_max == 9
    assert found.merged.settings.limits_of(1).subscriptions_max == 5

"""What differs between two configurations of a bus, and what of it can change while the bus runs.

What is part of the memory's layout, of what clients were promised about their packets, of what
several processes must agree on, or of how the bus was started needs a restart. Until then it stays
as it is, whatever the file says. Pure.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from sbus.broker.config.resolution import Configuration
from sbus.broker.config.settings import BusSettings
from sbus.limits import Limits, UserLimits

LIVE_BUS: Final = frozenset({"users", "exit_when_empty", "soft", "hard", "order"})
"""Fields of `[bus]` that can change; `soft`, `hard` and `order` for clients that come later."""
LIVE_BUS_WITHOUT_MODE: Final = frozenset({"group", "others"})
"""These are the mode of the socket's file. Where there is none the bus checks, and they can change
as well."""
LIVE_LIMITS: Final = frozenset(
    {
        *(f"user_{name}" for name in UserLimits.__struct_fields__),
        "client_subscription_bytes_max",
        "bus_subscription_bytes_max",
        "bus_backlog_bytes_max",
        *("socket_buffer_bytes", "backlog_messages_max", "backlog_bytes_max"),
        *("quantum_units", "watchers_max"),
        *("route_cache_bytes_max", "rule_cache_bytes_max"),
        *("drain_packets_max", "handoff_clients_max", "stop_seconds_max", "log_interval_seconds"),
    }
)
"""Limits that can change; `socket_buffer_bytes` and those of a client's backlog for clients that
come later."""


class Differences(msgspec.Struct, frozen=True):
    """`merged` is the new configuration as far as it can be in force now."""

    applied: list[str]
    needs_restart: list[str]
    merged: Configuration


def changes(old: Configuration, new: Configuration) -> Differences:
    """From what is in force to what is wanted; names are dotted, as in the file."""
    live = {f"bus.{name}" for name in _live_bus(new)} | {f"limits.{name}" for name in LIVE_LIMITS}
    if new.settings.dialect == old.settings.dialect:
        live.add("rules")  # else they are written in words that this bus does not speak
    of_users = set(_changed_limits_of_users(old, new))
    changed = {*_changed(old, new), *of_users}
    return Differences(
        applied=sorted(changed & (live | of_users)),
        needs_restart=sorted(changed - live - of_users),
        merged=_merged(old, new, live),
    )


def _live_bus(configuration: Configuration) -> frozenset[str]:
    return LIVE_BUS | LIVE_BUS_WITHOUT_MODE if configuration.checks_group else LIVE_BUS


def _changed(old: Configuration, new: Configuration) -> Iterator[str]:
    for name, value in new.bus.items():
        if value != old.bus[name]:
            yield f"bus.{name}"
    for name in Limits.__struct_fields__:
        if getattr(new.settings.limits, name) != getattr(old.settings.limits, name):
            yield f"limits.{name}"
    if new.settings.rules != old.settings.rules:
        yield "rules"


def _changed_limits_of_users(old: Configuration, new: Configuration) -> Iterator[str]:
    """Of users who have, or had, limits of their own; but not what follows from `[limits]`."""
    before, after = old.settings, new.settings
    for uid in before.user_limits.keys() | after.user_limits.keys():
        name = new.user_names.get(uid) or old.user_names[uid]
        for field in UserLimits.__struct_fields__:
            was, is_now = (getattr(settings.limits_of(uid), field) for settings in (before, after))
            usual = [getattr(settings.limits.user, field) for settings in (before, after)]
            if was != is_now and [was, is_now] != usual:
                yield f"users.{name}.{field}"


def _merged(old: Configuration, new: Configuration, live: set[str]) -> Configuration:
    before, after = old.settings, new.settings
    settings: BusSettings = replace(
        before,
        limits=replace(
            before.limits, **{name: getattr(after.limits, name) for name in LIVE_LIMITS}
        ),
        user_limits=after.user_limits,
        rules=after.rules if "rules" in live else before.rules,
        flood_control=after.flood_control,
        admit_uids=after.admit_uids,
        admit_gids=after.admit_gids,
        exit_when_empty=after.exit_when_empty,
    )
    bus = {
        name: new.bus[name] if f"bus.{name}" in live else value for name, value in old.bus.items()
    }
    return replace(new, settings=settings, bus=bus)

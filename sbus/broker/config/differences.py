"""What differs between two configurations of a bus, and what of it the running bus can apply.

A change needs a restart if it concerns the layout of shared memory, promises to clients about their
packets, something that several processes must agree on, or how the bus was started. Until then the
old value stays in force, whatever the file says.
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from sbus.broker.config.resolution import Configuration
from sbus.broker.config.settings import OPTION_FIELDS, BusSettings
from sbus.bus_options import reloadable_options
from sbus.limits import RELOADABLE_LIMITS, Limits, UserLimits


class Differences(msgspec.Struct, frozen=True):
    """`merged` is the new configuration as far as it can be in force now."""

    applied: list[str]
    needs_restart: list[str]
    merged: Configuration


def changes(old: Configuration, new: Configuration) -> Differences:
    """From what is in force to what is wanted; names are dotted, as in the file."""
    options = reloadable_options(without_mode=new.checks_group)
    live = {f"bus.{name}" for name in options} | {f"limits.{name}" for name in RELOADABLE_LIMITS}
    if new.settings.dialect == old.settings.dialect:
        live.add("rules")  # else their keys are written in a dialect that this bus does not speak
    of_users = set(_changed_limits_of_users(old, new))
    changed = {*_changed(old, new), *of_users}
    return Differences(
        applied=sorted(changed & (live | of_users)),
        needs_restart=sorted(changed - live - of_users),
        merged=replace(
            new,
            settings=_merged_settings(old.settings, new.settings, options),
            options={name: (new if name in options else old).options[name] for name in new.options},
        ),
    )


def _changed(old: Configuration, new: Configuration) -> Iterator[str]:
    for name, value in new.options.items():
        if value != old.options[name]:
            yield f"bus.{name}"
    for name in Limits.__struct_fields__:
        if getattr(new.settings.limits, name) != getattr(old.settings.limits, name):
            yield f"limits.{name}"
    if new.settings.rules != old.settings.rules:
        yield "rules"


def _changed_limits_of_users(old: Configuration, new: Configuration) -> Iterator[str]:
    """Of users who have, or had, limits of their own; but not what follows from `[limits]`."""
    before, after = old.settings, new.settings
    usual_before, usual_after = before.limits.user, after.limits.user
    for uid in before.user_limits.keys() | after.user_limits.keys():
        name = new.user_names.get(uid) or old.user_names[uid]
        own_before, own_after = before.limits_of(uid), after.limits_of(uid)
        for field in UserLimits.__struct_fields__:
            was, is_now = getattr(own_before, field), getattr(own_after, field)
            usual = getattr(usual_before, field), getattr(usual_after, field)
            if was != is_now and (was, is_now) != usual:
                yield f"users.{name}.{field}"


def _merged_settings(old: BusSettings, new: BusSettings, options: frozenset[str]) -> BusSettings:
    """`new`, but for options and limits that need a restart."""
    limits = {name: getattr(new.limits, name) for name in RELOADABLE_LIMITS}
    merged: BusSettings = replace(
        new,
        **{name: getattr(old, name) for name in OPTION_FIELDS - options},
        limits=replace(old.limits, **limits),
        rules=new.rules if new.dialect == old.dialect else old.rules,
    )
    return merged

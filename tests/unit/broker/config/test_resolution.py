"""Who may connect: what the bus checks itself for `users`, `group` and `others`."""

import os
from typing import Any

import pytest

from sbus.broker.config.resolution import Resolved, build_configuration
from sbus.bus_options import OPTIONS
from sbus.unix.users import Identity

OWN = os.geteuid()
OWN_GROUP = os.getegid()


@pytest.mark.parametrize(
    ("given", "uids", "gids"),
    [
        ({}, {OWN}, set()),
        ({"group": True}, {OWN}, {OWN_GROUP}),
        ({"others": True}, None, set()),
        ({"group": True, "others": True}, None, set()),
        ({"users": (7,)}, {OWN, 7}, set()),
        ({"users": (7,), "group": True, "others": True}, {OWN, 7}, set()),
    ],
)
def test_at_an_abstract_address_the_bus_checks(
    given: dict[str, Any], uids: set[int] | None, gids: set[int]
) -> None:
    assert admitted(given, is_abstract=True) == (uids, gids)


@pytest.mark.parametrize("given", [{}, {"group": True}, {"others": True}])
def test_at_a_path_the_kernel_checks(given: dict[str, Any]) -> None:
    assert admitted(given, is_abstract=False) == (None, set())


def test_at_a_path_the_bus_checks_for_named_users() -> None:
    assert admitted({"users": (7,), "group": True}, is_abstract=False) == ({OWN, 7}, set())


def admitted(given: dict[str, Any], *, is_abstract: bool) -> tuple[set[int] | None, set[int]]:
    options = {option.name: option.default_value for option in OPTIONS} | given
    users = frozenset(options["users"])
    configuration = build_configuration(
        options, users, Resolved(), owner=Identity(OWN, OWN_GROUP), is_abstract=is_abstract
    )
    assert configuration.checks_group == is_abstract
    settings = configuration.settings
    uids = None if settings.admit_uids is None else set(settings.admit_uids)
    return uids, set(settings.admit_gids)

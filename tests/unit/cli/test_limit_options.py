"""`--limit NAME=VALUE`: every limit can be set, nothing else can, and mistakes are explained."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.cli.limit_options import describe_limits, parse_limits
from sbus.errors import ConfigurationError
from sbus.limits import Limits

FIELDS = msgspec.structs.fields(Limits)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: str(field.name))
def test_every_limit_can_be_set_alone(field: msgspec.structs.FieldInfo) -> None:
    more = field.default + 1
    changed = parse_limits([f"{field.name}={more}"], Limits())
    assert changed == msgspec.structs.replace(Limits(), **{field.name: more})
    assert type(getattr(changed, field.name)) is type(field.default)


def test_of_several_values_of_a_limit_the_last_holds() -> None:
    limits = parse_limits(["key_bytes_max=1", "packet_bytes_max=7", "key_bytes_max=2"], Limits())
    assert (limits.key_bytes_max, limits.packet_bytes_max) == (2, 7)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("key_bytes_max", "NAME=VALUE"),
        ("", "NAME=VALUE"),
        ("=1", "there is no limit ''"),
        ("key_byte_max=1", "did you mean key_bytes_max"),
        ("KEY_BYTES_MAX=1", "there is no limit 'KEY_BYTES_MAX'"),
        ("xyzzy=1", "--limit help lists them"),
        ("key_bytes_max=", "key_bytes_max cannot be ''"),
        ("key_bytes_max=1.5", "key_bytes_max cannot be '1.5'"),
        ("key_bytes_max=1=2", "key_bytes_max cannot be '1=2'"),
        ("key_bytes_max=0x10", "key_bytes_max cannot be '0x10'"),
        ("key_bytes_max=-1", "key_bytes_max cannot be '-1'"),
        ("stop_seconds_max=nan", "stop_seconds_max cannot be 'nan'"),
        ("stop_seconds_max=inf", "stop_seconds_max cannot be 'inf'"),
        ("stop_seconds_max=-0.1", "stop_seconds_max cannot be '-0.1'"),
    ],
)
def test_a_mistake_is_named(assignment: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_limits(["packet_bytes_max=1000", assignment], Limits())
    assert expected in str(refused.value)


@given(st.sampled_from([field.name for field in FIELDS]), st.text())
def test_a_value_is_either_taken_exactly_or_refused(name: str, value: str) -> None:
    try:
        limits = parse_limits([f"{name}={value}"], Limits())
    except ConfigurationError as refused:
        named = str(refused)
    else:
        named = name
        assert 0 <= getattr(limits, name) < math.inf
        assert float(getattr(limits, name)) == float(value)
    assert name in named


def test_every_limit_is_described_with_its_default() -> None:
    lines = [line.split() for line in describe_limits().splitlines()]
    assert lines == [[field.name, str(field.default)] for field in FIELDS]

"""The options of `format("sbus")`.

Everything that does not depend on a recording is checked here, at once, when the data frame is
made. So a mistake is an error where it was made, and the error names the option. Spark hands over
names in lower case; users may write them in any.

This module neither opens anything nor imports Spark.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import msgspec

from sbus.errors import AddressError, ClientFault, ConfigurationError
from sbus.limits import Limits
from sbus.pipeline.store.schemas import TABLES, timestamp_us
from sbus.protocol.keys import SLASH, check_pattern, parse_pattern
from sbus.protocol.text import from_text
from sbus.unix.address import PathAddress, parse_address
from sbus.validation import explain, suggest

SOURCE_OPTIONS: Final = (
    *("path", "socket", "table", "subscribe"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss"),
)
SINK_OPTIONS: Final = ("socket", "key")
OF_SPARK: Final = frozenset({"checkpointlocation"})
"""Options for Spark itself, which it passes on."""
OF_CATALOG: Final = "provider"
"""The property by which a catalog's table is known. A catalog passes all properties of a table: its
options, the same again with `option.` before their names, and others."""
EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets that stand for the ends of the recording, as in Kafka."""
_Offset = Annotated[int, msgspec.Meta(ge=EARLIEST)]


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: at an end of the recording (`everywhere` is EARLIEST or LATEST), at
    an offset for each recorder, or at a time."""

    option: str
    everywhere: int | None = None
    offsets: Mapping[str, int] | None = None
    timestamp_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read. Exactly one of `path` and `socket` is given."""

    path: str | None
    socket: str | None
    table: str
    patterns: tuple[bytes, ...] | None
    """None: every row."""
    starting: Bound | None
    ending: Bound | None
    offsets_per_trigger_max: int | None
    partitions_min: int
    fail_on_data_loss: bool


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to publish; `key` is for rows without one."""

    socket: str
    key: bytes | None


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Raises ConfigurationError, which names the option."""
    chosen = _canonical(given, SOURCE_OPTIONS)
    table = chosen.get("table", "messages")
    _check_source(chosen, table)
    starting = _bound(chosen, "startingOffsets", "startingTimestamp")
    ending = _bound(chosen, "endingOffsets", "endingTimestamp")
    if starting is not None and ending is not None:
        first_us, end_us = starting.timestamp_us, ending.timestamp_us
        if first_us is not None and end_us is not None and first_us > end_us:
            raise ConfigurationError("startingTimestamp is after endingTimestamp")
    return SourceOptions(
        path=_location(chosen["path"]) if "path" in chosen else None,
        socket=_address(chosen["socket"]) if "socket" in chosen else None,
        table=table,
        patterns=_patterns(chosen["subscribe"]) if "subscribe" in chosen else None,
        starting=starting,
        ending=ending,
        offsets_per_trigger_max=_count(chosen, "maxOffsetsPerTrigger"),
        partitions_min=_count(chosen, "minPartitions") or 1,
        fail_on_data_loss=_flag(chosen, "failOnDataLoss", default=True),
    )


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a catalog's table; None if these are not the properties of one."""
    return _canonical(given, SOURCE_OPTIONS) if OF_CATALOG in given else None


def _check_source(chosen: Mapping[str, str], table: str) -> None:
    path, socket = chosen.get("path"), chosen.get("socket")
    if (path is None) == (socket is None):
        both = "both path and socket are given" if path is not None else "nothing says what to read"
        raise ConfigurationError(
            f"{both}: give path, the directory of a recording, or socket, the address of a bus"
        )
    if path == "":
        raise ConfigurationError("path is empty: give the directory of a recording")
    if table not in TABLES:
        raise ConfigurationError(f"table={table!r}: there are {', '.join(TABLES)}")
    if table != "messages" and "subscribe" in chosen:
        raise ConfigurationError(f"subscribe is about keys, and the table {table} has none")
    if table != "messages" and socket is not None:
        raise ConfigurationError(f"socket: a live bus has messages, only a recording has {table}")
    for name in ("startingOffsets", "startingTimestamp", "minPartitions"):
        if socket is not None and name in chosen:
            raise ConfigurationError(
                f"{name} is for recordings: a live bus is read from now on, by one task"
            )


def check_batch(options: SourceOptions) -> None:
    """Check these options for a batch. Raises ConfigurationError."""
    if options.socket is not None:
        raise ConfigurationError(
            "socket is for streams (readStream), a live bus has no end: "
            "to read what was, record the bus and give path"
        )
    if options.starting is not None and _mentions(options.starting, LATEST):
        raise ConfigurationError("startingOffsets: a batch that starts at latest reads nothing")
    if options.ending is not None and _mentions(options.ending, EARLIEST):
        raise ConfigurationError("endingOffsets: a batch that ends at earliest reads nothing")
    if options.offsets_per_trigger_max is not None:
        raise ConfigurationError("maxOffsetsPerTrigger is for streams: limit a batch by its end")


def check_stream(options: SourceOptions) -> None:
    """Check these options for a stream. Raises ConfigurationError."""
    if options.ending is not None:
        raise ConfigurationError(f"{options.ending.option} is for batches: a stream has no end")


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises ConfigurationError, which names the option."""
    chosen = _canonical(given, SINK_OPTIONS)
    if "socket" not in chosen:
        raise ConfigurationError("nothing says where to publish: give socket, the address of a bus")
    socket = _address(chosen["socket"])
    return SinkOptions(socket, _bytes("key", chosen["key"]) if "key" in chosen else None)


def _canonical(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options under the names they are documented with."""
    spelled = {name.lower(): name for name in names}
    is_table = OF_CATALOG in given
    chosen: dict[str, str] = {}
    for property_, value in given.items():
        name = property_.removeprefix("option.") if is_table else property_
        if name.lower() in OF_SPARK:
            continue
        if name.lower() not in spelled:
            if is_table and name == property_:
                continue
            raise ConfigurationError(f"unknown option {name!r}{suggest(name, names)}")
        chosen[spelled[name.lower()]] = value
    return chosen


def _location(text: str) -> str:
    """The directory that a path or a `file:` URI names, or another URI. Spark's catalogs write
    paths as such URIs; like Spark's own sources, this does not decode percent signs."""
    scheme, separator, rest = text.partition(":")
    if scheme.lower() != "file" or not separator or rest[:1] != "/":
        return text
    if rest.startswith("//") and not rest.startswith("///"):
        raise ConfigurationError(
            f"path={text!r}: a recording is read from a directory of this machine, or file:///…"
        )
    return rest.removeprefix("//")


def _address(text: str) -> str:
    """The address, absolute, because tasks run in another directory."""
    try:
        address = parse_address(text)
        address.sockaddr()
    except AddressError as error:
        raise ConfigurationError(f"socket: {error}") from error
    return os.path.abspath(text) if isinstance(address, PathAddress) else text


def _patterns(text: str) -> tuple[bytes, ...]:
    if not text.strip():
        return (b"",)
    return tuple(_pattern(part.strip()) for part in text.split(","))


def _pattern(text: str) -> bytes:
    if not text:
        raise ConfigurationError("subscribe: an empty pattern among others means everything")
    pattern = _bytes("subscribe", text)
    try:
        check_pattern(pattern, SLASH, Limits())
    except ClientFault as error:
        raise ConfigurationError(f"subscribe: {text!r}: {error.text}") from error
    if parse_pattern(pattern, SLASH) is None:
        raise ConfigurationError(
            f"subscribe: {text!r} matches no key: a * takes the rest of its segment, and more "
            "follows it there"
        )
    return pattern


def _bytes(option: str, text: str) -> bytes:
    try:
        data = from_text(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{option}: {text!r}: {error}; a byte is written \\xNN, a backslash \\\\"
        ) from error
    if b"\0" in data:
        raise ConfigurationError(f"{option}: {text!r}: no key holds a NUL")
    return data


def _bound(chosen: Mapping[str, str], offsets: str, timestamp: str) -> Bound | None:
    if offsets in chosen and timestamp in chosen:
        raise ConfigurationError(f"both {offsets} and {timestamp} are given: give one of them")
    if timestamp in chosen:
        return Bound(timestamp, timestamp_us=_timestamp_us(timestamp, chosen[timestamp]))
    return _offsets(offsets, chosen[offsets]) if offsets in chosen else None


def _offsets(option: str, text: str) -> Bound:
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if named is not None:
        return Bound(option, everywhere=named)
    try:
        return Bound(option, offsets=msgspec.json.decode(text, type=dict[str, _Offset]))
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f'{option}={text!r}: it is earliest, latest, or JSON like {{"recorder": 123}}, where '
            f"-1 is the latest and -2 the earliest ({explain(error)})"
        ) from error


def _mentions(bound: Bound, special: int) -> bool:
    return bound.everywhere == special or special in (bound.offsets or {}).values()


def _timestamp_us(option: str, text: str) -> int:
    """A time, in microseconds since 1970."""
    digits = text.strip()
    try:
        if digits.lstrip("-").isdecimal():
            return int(digits) * 1000
        return timestamp_us(datetime.fromisoformat(digits))
    except ValueError as error:
        raise ConfigurationError(
            f"{option}={text!r}: it is milliseconds since 1970, or like 2026-05-04T12:30:00Z"
        ) from error


def _count(chosen: Mapping[str, str], option: str) -> int | None:
    if option not in chosen:
        return None
    text = chosen[option].strip()
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise ConfigurationError(f"{option}={chosen[option]!r}: it is a number from 1 on")
    return int(text)


def _flag(chosen: Mapping[str, str], option: str, *, default: bool) -> bool:
    text = chosen.get(option, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{option}={chosen[option]!r}: it is true or false")
    return text == "true"

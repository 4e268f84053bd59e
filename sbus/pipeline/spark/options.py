"""The options of `format("sbus")`.

Everything that does not depend on a recording is checked here, at once, when the data frame is
made. So a mistake is an error where it was made, and the error names the option. Spark hands over
names in lower case; users may write them in any.

This module neither opens anything nor imports Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from sbus.cli.terminal.units import parse_seconds
from sbus.errors import AddressError, ClientFault, ConfigurationError
from sbus.limits import Limits
from sbus.pipeline.store.schemas import timestamp_us
from sbus.pipeline.store.stored_file import absolute
from sbus.protocol.keys import SLASH, check_pattern, parse_pattern
from sbus.protocol.text import from_text
from sbus.unix.address import PathAddress, parse_address
from sbus.validation import explain, suggest

_Count = Annotated[int, msgspec.Meta(ge=1)]
_TRIGGER_DELAY = "15m"
"""As in Kafka."""


class _SourceTexts(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The options of a read as they are given; those that need more than their type are text."""

    path: str = ""
    table: Literal["messages", "clients", "events"] = "messages"
    subscribe: str | None = None
    hosts: str = ""
    starting_offsets: str | None = None
    ending_offsets: str | None = None
    starting_timestamp: str | None = None
    ending_timestamp: str | None = None
    min_offsets_per_trigger: _Count | None = None
    max_offsets_per_trigger: _Count | None = None
    max_trigger_delay: str | None = None
    min_partitions: _Count = 1
    max_records_per_partition: _Count | None = None
    fail_on_data_loss: bool = True


SOURCE_OPTIONS: Final = _SourceTexts.__struct_encode_fields__
SINK_OPTIONS: Final = ("socket", "key", "checkpointLocation")
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


class SourceOptions(_SourceTexts, frozen=True, kw_only=True):
    """What to read, and how much of it at a time."""

    patterns: tuple[bytes, ...] | None
    """None: every row."""
    host_names: tuple[str, ...]
    """Empty: all hosts."""
    starting: Bound | None
    ending: Bound | None
    trigger_delay_seconds_max: float


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to publish; `key` is for rows without one, `checkpoint` is that of a stream."""

    socket: str
    key: bytes | None
    checkpoint: str | None


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Raises ConfigurationError, which names the option."""
    chosen = _canonical(given, SOURCE_OPTIONS)
    try:
        texts = msgspec.convert(chosen, _SourceTexts, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(explain(error)) from error
    _check_together(texts)
    starting = _bound(chosen, "startingOffsets", "startingTimestamp")
    ending = _bound(chosen, "endingOffsets", "endingTimestamp")
    if starting is not None and ending is not None:
        first_us, end_us = starting.timestamp_us, ending.timestamp_us
        if first_us is not None and end_us is not None and first_us > end_us:
            raise ConfigurationError("startingTimestamp is after endingTimestamp")
    parsed = {
        "path": _location(texts.path),
        "patterns": None if texts.subscribe is None else _patterns(texts.subscribe),
        "host_names": tuple(filter(None, map(str.strip, texts.hosts.split(",")))),
        "starting": starting,
        "ending": ending,
        "trigger_delay_seconds_max": _delay_seconds(texts.max_trigger_delay or _TRIGGER_DELAY),
    }
    return SourceOptions(**{**msgspec.structs.asdict(texts), **parsed})


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a catalog's table; None if these are not the properties of one."""
    return _canonical(given, SOURCE_OPTIONS) if OF_CATALOG in given else None


def _check_together(texts: _SourceTexts) -> None:
    if not texts.path:
        raise ConfigurationError("nothing says what to read: give path, a recording's directory")
    if texts.table != "messages" and texts.subscribe is not None:
        raise ConfigurationError(f"subscribe is about keys, and the table {texts.table} has none")
    least, most = texts.min_offsets_per_trigger, texts.max_offsets_per_trigger
    if least is None and texts.max_trigger_delay is not None:
        raise ConfigurationError("maxTriggerDelay is the most that minOffsetsPerTrigger may cause")
    if least is not None and most is not None and least > most:
        raise ConfigurationError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")


def check_batch(options: SourceOptions) -> None:
    """Check these options for a batch. Raises ConfigurationError."""
    if options.starting is not None and _mentions(options.starting, LATEST):
        raise ConfigurationError("startingOffsets: a batch that starts at latest reads nothing")
    if options.ending is not None and _mentions(options.ending, EARLIEST):
        raise ConfigurationError("endingOffsets: a batch that ends at earliest reads nothing")
    if (options.min_offsets_per_trigger or options.max_offsets_per_trigger) is not None:
        raise ConfigurationError(
            "minOffsetsPerTrigger and maxOffsetsPerTrigger are for streams: a batch has an end"
        )


def check_stream(options: SourceOptions) -> None:
    """Check these options for a stream. Raises ConfigurationError."""
    if options.ending is not None:
        raise ConfigurationError(f"{options.ending.option} is for batches: a stream has no end")


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises ConfigurationError, which names the option."""
    chosen = _canonical(given, SINK_OPTIONS)
    if "socket" not in chosen:
        raise ConfigurationError("nothing says where to publish: give socket, the address of a bus")
    checkpoint = chosen.get("checkpointLocation")
    return SinkOptions(
        socket=_address(chosen["socket"]),
        key=_bytes("key", chosen["key"]) if "key" in chosen else None,
        checkpoint=None if checkpoint is None else absolute(_location(checkpoint)),
    )


def _canonical(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options under the names they are documented with."""
    spelled = {name.lower(): name for name in names}
    is_table = OF_CATALOG in given
    chosen: dict[str, str] = {}
    for property_, value in given.items():
        name = property_.removeprefix("option.") if is_table else property_
        if name.lower() not in spelled:
            if name.lower() in OF_SPARK or (is_table and name == property_):
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
    return absolute(text) if isinstance(address, PathAddress) else text


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
        raise ConfigurationError(f"{option}: {text!r}: {error}") from error
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


def _delay_seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigurationError(f"maxTriggerDelay: {error}") from error

"""The configuration file of a bridge: channels, and the links that they cross.

A *channel* is a list of patterns with a name that all hosts agree on. A *link* leads to a cluster
of NATS servers, or to another bus of this host.
"""

import os
import re
import socket
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from sbus.bridge.envelope import ORIGIN
from sbus.bridge.own_keys import may_cross
from sbus.errors import ClientFault, ConfigurationError
from sbus.limits import Limits
from sbus.protocol.keys import SLASH, check_pattern, parse_pattern
from sbus.protocol.pattern_matching import compile_patterns
from sbus.toml_file import parse_toml, read_regular
from sbus.unix.machine_id import machine_id
from sbus.validation import explain, printable

_NAME: Final = re.compile("[0-9A-Za-z_-]{1,32}")
_PREFIX: Final = re.compile(r"[0-9A-Za-z_-]{1,64}(\.[0-9A-Za-z_-]{1,64}){0,7}")
_MIB: Final = 1024 * 1024

Names = list[str]
Positive = Annotated[int, Meta(ge=1, le=2**50)]
T = TypeVar("T")


class Durable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a channel JetStream keeps, and for how long."""

    hours_max: Annotated[float, Meta(gt=0, le=1_000_000)] = 24.0
    bytes_max: Positive = 1024 * _MIB
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1


class Channel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What crosses under this name."""

    patterns: Annotated[list[str], Meta(min_length=1)]
    when_full: Literal["discard", "block"] = "discard"
    """What happens on the local bus while a link takes no more: messages of the channel are given
    up, or their publishers are held back as far as the bus allows that."""
    claims: bool = False
    """Whether a note before each message tells who has published it."""
    durable: Durable | None = None

    @property
    def encoded_patterns(self) -> list[bytes]:
        return [os.fsencode(pattern) for pattern in self.patterns]

    def pattern_of(self, key: bytes) -> str:
        """The first of the patterns that this key matches."""
        return _pattern_of(tuple(self.patterns), key)


@lru_cache(4_096)
def _pattern_of(patterns: tuple[str, ...], key: bytes) -> str:
    return next(it for it in patterns if compile_patterns([os.fsencode(it)], SLASH)(key))


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`servers`: the URLs of a cluster; or `uplink`: the address of another bus of this host."""

    servers: list[str] = []
    uplink: str = ""
    exports: Names = msgspec.field(name="export", default_factory=list)
    imports: Names = msgspec.field(name="import", default_factory=list)
    prefix: str = "sbus"
    """Of the subjects."""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    credentials: str = ""
    nkey: str = ""
    """Files, as NATS's own tools take them."""
    buffer_bytes_max: Positive = 16 * _MIB
    """Of what waits to be sent."""


class _Bridge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    address: str = ""
    origin: str = ""
    host: str = ""
    state: str = ""


class _Tables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bridge: Any = {}
    channels: dict[str, Any] = {}
    links: dict[str, Any] = {}


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, checked."""

    address: str
    """Of the local bus."""
    origin: str
    """What other bridges know this bus by."""
    host: str
    """What people know it by."""
    state: str
    """A directory for what durable channels have to remember; "" if there is none."""
    channels: dict[str, Channel]
    links: dict[str, Link]

    def __str__(self) -> str:
        exported = {name for link in self.links.values() for name in link.exports}
        imported = {name for link in self.links.values() for name in link.imports}
        return (
            f"links: {len(self.links)}, channels: {len(self.channels)}, exported: "
            f"{len(exported)}, imported: {len(imported)}"
        )


def default_origin(address: str) -> str:
    """Of the bus at this address of this machine."""
    identity = f"{machine_id() or socket.gethostname()} {os.path.abspath(address)}"
    return sha256(identity.encode()).hexdigest()[:16]


def read_configuration(path: str, address: str) -> Configuration:
    """What the file says; `address` is for a bus that it does not name. Raises ConfigurationError:
    one line with the file, the place, and what is wrong there."""
    try:
        return parse_configuration(read_regular(path), address, os.path.dirname(path))
    except OSError as error:
        raise ConfigurationError(f"cannot read {printable(path)}: {error.strerror}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"{printable(path)}: {error}") from error


def parse_configuration(data: bytes, address: str, directory: str = "") -> Configuration:
    """Likewise, without the file; relative paths begin in `directory`."""
    tables = _convert(parse_toml(data), _Tables, "")
    own = _convert(tables.bridge, _Bridge, "bridge")
    channels = {
        _checked_name(name, "channels"): _convert(table, Channel, f"channels.{name}")
        for name, table in tables.channels.items()
    }
    links = {
        _checked_name(name, "links"): _in(directory, _convert(table, Link, f"links.{name}"))
        for name, table in tables.links.items()
    }
    address = own.address or address
    origin = own.origin or default_origin(address)
    if not ORIGIN.fullmatch(origin):
        raise ConfigurationError("bridge.origin: letters, digits, - and _, at most 64")
    state = os.path.join(directory, own.state) if own.state else ""
    found = Configuration(
        address=address,
        origin=origin,
        host=own.host or socket.gethostname(),
        state=state,
        channels=channels,
        links=links,
    )
    for name, channel in channels.items():
        _check_channel(f"channels.{name}", channel, found)
    for name, link in links.items():
        _check_link(f"links.{name}", link, found)
    for name, channel in channels.items():
        for lists in (
            [link.exports for link in links.values()],
            [link.imports for link in links.values()],
        ):
            if channel.durable and sum(name in names for names in lists) > 1:
                raise ConfigurationError(f"channels.{name}: a durable channel crosses one link")
    if not links:
        raise ConfigurationError("links: there are none, so nothing would cross")
    return found


def _check_channel(place: str, channel: Channel, whole: Configuration) -> None:
    for number, pattern in enumerate(channel.encoded_patterns):
        where = f"{place}.patterns[{number}]"
        if not may_cross(pattern):
            raise ConfigurationError(
                f"{where}: reserved keys, secret messages, and keys below bridge/ never cross"
            )
        try:
            check_pattern(pattern, SLASH, Limits())
        except ClientFault as fault:
            raise ConfigurationError(f"{where}: {fault.text}") from None
        if parse_pattern(pattern, SLASH) is None or b"\0" in pattern:
            raise ConfigurationError(f"{where}: this pattern matches no key")
    if channel.durable and not os.path.isdir(whole.state):
        raise ConfigurationError(f"{place}.durable: needs a directory that exists, bridge.state")


def _check_link(place: str, link: Link, whole: Configuration) -> None:
    if bool(link.servers) == bool(link.uplink):
        raise ConfigurationError(f"{place}: either servers, or uplink")
    for what, names in (("export", link.exports), ("import", link.imports)):
        if len(set(names)) < len(names):
            raise ConfigurationError(f"{place}.{what}: names a channel twice")
        for name in names:
            if name not in whole.channels:
                raise ConfigurationError(
                    f"{place}.{what}: there is no channel {printable(repr(name))}"
                )
            if link.uplink and whole.channels[name].durable:
                raise ConfigurationError(f"{place}.{what}: a durable channel needs NATS")
    if not link.exports and not link.imports:
        raise ConfigurationError(f"{place}: names no channel to export or import")
    if not _PREFIX.fullmatch(link.prefix):
        raise ConfigurationError(f"{place}.prefix: words of letters, digits, - and _, with dots")
    for url in link.servers:
        if not _is_url(url):
            raise ConfigurationError(f"{place}.servers: {printable(repr(url))} is no nats:// URL")
    if bool(link.certificate) != bool(link.key):
        raise ConfigurationError(f"{place}: certificate and key belong together")
    for name in ("ca", "certificate", "key", "credentials", "nkey"):
        file = getattr(link, name)
        if file and not os.access(file, os.R_OK):
            raise ConfigurationError(f"{place}.{name}: cannot read {printable(file)}")


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _in(directory: str, link: Link) -> Link:
    """The same link, with paths that begin in this directory."""
    files = {
        name: os.path.join(directory, getattr(link, name))
        for name in ("ca", "certificate", "key", "credentials", "nkey")
        if getattr(link, name)
    }
    return msgspec.structs.replace(link, **files)


def _checked_name(name: str, place: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{place}.{printable(name)}: a name has letters, digits, - and _, at most 32"
        )
    return name


def _convert(table: object, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        known = [
            field.encode_name
            for field in (msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else ())
        ]
        text = explain(error, place, known).replace("an object", "a table")
        raise ConfigurationError(text) from error

"""The options of `connect`, and the errors about them."""

from typing import TypedDict, get_args

from sbus.client.message_queue import Losses
from sbus.errors import ConfigurationError
from sbus.limits import Limits
from sbus.protocol import controls
from sbus.protocol.keys import DIALECTS, SLASH
from sbus.protocol.packets import encode_control


class LinkOptions(TypedDict, total=False):
    """The options of `connect` besides the address.

    `dialect`: the dialect of the bus, "slash" (default) or "dot".
    `packet_bytes_max`: the limit of the bus, if it is not 409,600 bytes.
    `key_bytes_max`, `key_segments_max`: its limits of keys and patterns, if not 4,096 and 128.
    `inbox_messages_max`, `inbox_bytes_max`: how much may wait to be received while a call looks for
    a reply.
    `age_seconds`: the bus drops messages that have waited for this client for longer; they count as
    lost. From 0.001 to 86,400.
    `sender`: each message has a `sender`: who has published it, and its place in the total order.
    `reconnect`: when the bus goes away, wait for it, and subscribe and set as before. The gap is
    logged, or with other `losses` a Reconnected item or ConnectionInterrupted. No message is
    published twice: the ones that the bus may not have processed are counted in
    MessagesUnconfirmed, which the next `sync` or `whoami` raises, and `receive` unless losses are
    logged. A subscription that was refused is not made again, if a `sync`
    after it told that it was the one; `unsubscribe` from others.
    """

    dialect: str
    packet_bytes_max: int
    key_bytes_max: int
    key_segments_max: int
    inbox_messages_max: int
    inbox_bytes_max: int
    age_seconds: float
    reconnect: bool
    sender: bool


def check_options(losses: Losses, options: LinkOptions) -> None:
    """Raises TypeError for an option that does not exist, ConfigurationError for a wrong value."""
    unknown = sorted(options.keys() - LinkOptions.__annotations__.keys())
    if unknown:
        known = ", ".join(LinkOptions.__annotations__)
        raise TypeError(f"connect has no option {unknown[0]!r}; there are losses, {known}")
    _check_choice("losses", losses, get_args(Losses))
    _check_choice("dialect", options.get("dialect", SLASH.name), tuple(DIALECTS))
    for name in ("age_seconds", "sender"):
        if options.get(name) and options.get("dialect") not in (None, SLASH.name):
            raise ConfigurationError(f"{name} needs the dialect {SLASH.name}")
    for name, value in options.items():
        if name.endswith("_max") and not (isinstance(value, int) and value > 0):
            raise ConfigurationError(f"{name} is {value!r}: it has to be a number from 1 on")
        if name == "age_seconds" and not (
            isinstance(value, int | float) and 0.001 <= value <= controls.AGE_MS_MAX / 1000
        ):
            raise ConfigurationError(f"{name} is {value!r}: it has to be from 0.001 to 86400")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!r}: use {' or '.join(choices)}")


def settings_of(options: LinkOptions) -> list[bytes]:
    """The control messages that these options ask for."""
    settings = [controls.SENDER_ON] if options.get("sender") else []
    if "age_seconds" in options:
        settings.append(b"age/%d" % round(options["age_seconds"] * 1000))
    return [encode_control(key) for key in settings]


def limits_of(options: LinkOptions) -> Limits:
    """Those of the bus that keys and patterns have to keep."""
    bytes_max = options.get("key_bytes_max", Limits().key_bytes_max)
    segments_max = options.get("key_segments_max", Limits().key_segments_max)
    return Limits(
        key_bytes_max=bytes_max,
        key_segments_max=segments_max,
        pattern_bytes_max=bytes_max,
        pattern_segments_max=segments_max,
    )

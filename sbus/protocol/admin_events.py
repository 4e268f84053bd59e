"""Kinds of events: what administrators do, and what becomes of the configuration; see `events`.

Each request that changes something or monitors messages is an event of its own, with the process
that asked. The event of its effect follows.
"""

from sbus.protocol.event import ERROR, INFO, NOTICE, WARNING, LoggedEvent, Process


class AdministratorActed(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = "administrator of uid {uid}, pid {pid} ({program}) asked: {verb} {arguments}"

    who: Process
    verb: str
    arguments: str
    """Each as NAME=VALUE; cut if they are long."""


class MonitorBegan(LoggedEvent, frozen=True, kw_only=True):
    priority = INFO
    template = "administrator of uid {uid}, pid {pid} ({program}) monitors messages: {arguments}"

    who: Process
    arguments: str


class MonitorEnded(LoggedEvent, frozen=True, kw_only=True):
    priority = INFO
    template = "administrator of uid {uid}, pid {pid} ({program}) monitors no more: {arguments}"

    who: Process
    arguments: str
    """As of the event of its beginning."""


class ConfigurationReloaded(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = "configuration read again; in force: {applied}; after a restart: {needs_restart}"

    applied: list[str]
    needs_restart: list[str]


class ConfigurationRejected(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "configuration rejected, nothing changes: {why}"

    why: str


class NamesMissing(LoggedEvent, frozen=True, kw_only=True):
    priority = WARNING
    template = "users and groups of the configuration that are not found: {count} ({names})"

    count: int
    names: list[str]
    """The first of them, each with its place in the file."""


class LimitsChanged(LoggedEvent, frozen=True, kw_only=True):
    priority = NOTICE
    template = "limits of uid {uid} changed: {changes}"

    uid: int
    changes: list[str]
    """Each as NAME=VALUE."""


class AdminRequestFailed(LoggedEvent, frozen=True, kw_only=True):
    priority = ERROR
    template = "an administrator's request failed because of a bug: {why} ({where})"

    why: str
    where: str

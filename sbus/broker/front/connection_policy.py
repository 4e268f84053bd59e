"""The connection policy: decides which clients may come in.

A connection counts from its acceptance, so the connections of one user that wait for admission are
bounded like those that are admitted.
"""

import socket

from sbus.broker.config.access_policy import PeerRules, RuleSet
from sbus.broker.config.settings import BusSettings
from sbus.broker.front.administrators import Administrators
from sbus.broker.front.client_descriptors import ClientDescriptors
from sbus.broker.front.rejector import Refusal
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.shared.accounts import Account
from sbus.unix.credentials import Credentials, is_member, peer_groups

_NOT_ADMITTED = Refusal(
    "not-admitted", "this bus is for others", "none of the users that the bus is for"
)
_TOO_MANY_USERS = Refusal(
    "too-many-users",
    "the bus keeps accounts for no more users",
    "the bus keeps no more accounts (users_max)",
)
_TOO_MANY = "your user has as many as it may"
_NO_DESCRIPTORS = Refusal(
    "too-many-connections",
    "your user has as many as it leaves to others",
    "its user has as many as it leaves to others (limit of open files)",
)


class ConnectionPolicy:
    """Of one bus."""

    def __init__(
        self,
        settings: BusSettings,
        user_limits: EffectiveUserLimits,
        descriptors: ClientDescriptors,
        administrators: Administrators,
    ) -> None:
        self._administrators = administrators
        self._user_limits = user_limits
        self.descriptors = descriptors
        self.apply_settings(settings)

    def apply_settings(self, settings: BusSettings) -> None:
        self._admit_uids = settings.admit_uids
        self._admit_gids = settings.admit_gids
        self._rules = PeerRules(settings.rules)

    def rules_for(self, sock: socket.socket, own: Credentials) -> RuleSet:
        """The access rules in force that concern a peer."""
        return rules_for_peer(self._rules, sock, own)

    def decide(self, sock: socket.socket, own: Credentials) -> Account | Refusal:
        """The account of a client that may come in, or why it may not."""
        uids = self._admit_uids
        if not (uids is None or own.uid in uids or is_member(sock, own, self._admit_gids)):
            return _NOT_ADMITTED
        denied_by = self._rules.connect_denied_by(self.rules_for(sock, own))
        if denied_by is not None:
            text = "you may not connect to this bus"
            return Refusal("not-admitted", text, f"rules[{denied_by}]")
        account = self._user_limits.open_account(own.uid)
        if account is None:
            return _TOO_MANY_USERS
        if not account.has_room_for_connection():
            return Refusal("too-many-connections", _TOO_MANY, _TOO_MANY, account)
        if self.descriptors.has_room(account) or (
            self.descriptors.has_room_for_administrator()
            and self._administrators.include(sock, own)
        ):
            return account
        return _NO_DESCRIPTORS


def rules_for_peer(rules: PeerRules, sock: socket.socket, own: Credentials) -> RuleSet:
    """The access rules that concern a peer; the kernel is asked for its groups if need be."""
    groups = peer_groups(sock) | {own.gid} if rules.depend_on_groups else frozenset({own.gid})
    return rules.rules_for(own.uid, groups)

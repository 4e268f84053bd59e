"""The limits of each user that are in force: of the settings, as changed by administrators."""

import os
import time
from collections.abc import Mapping

import msgspec

from sbus.broker.config.resolution import Configuration
from sbus.broker.config.settings import BusSettings
from sbus.broker.ipc.bus_record import UserRecord
from sbus.errors import ConfigurationError
from sbus.limits import UserLimits
from sbus.shared.account_book import AccountBook
from sbus.shared.account_record import AccountRecord
from sbus.shared.accounts import Account
from sbus.unix.subordinate_ids import SubordinateIds
from sbus.validation import explain, suggest

_NAMES = UserLimits.__struct_fields__


class EffectiveUserLimits:
    """The limits of all users of a bus; `book` has their accounts."""

    def __init__(self, settings: BusSettings, book: AccountBook) -> None:
        self._settings = settings
        self._book = book
        self._changed: dict[int, dict[str, int | float]] = {}
        """Only what administrators have changed; the rest is as in the settings."""
        self._subordinate_ids = SubordinateIds()

    def apply_settings(self, settings: BusSettings) -> None:
        """Apply the limits of these settings; those that administrators have changed stay.

        From then on root, the bus's own user and those that the settings name have accounts that
        are never closed, so that nobody else keeps them out.
        """
        self._settings = settings
        kept = {0, os.getuid(), *settings.user_limits}
        self._book.apply_limits(settings.limits, self.limits_of, kept)

    def undo_changes(self, configuration: Configuration) -> list[str]:
        """Return to this configuration, which is in force, from what administrators have changed;
        returns what was not as there, named as there."""
        undone = [
            f"users.{configuration.user_names.get(uid, uid)}.{name}"
            for uid, changed in self._changed.items()
            for name, value in changed.items()
            if getattr(configuration.settings.limits_of(uid), name) != value
        ]
        self._changed.clear()
        self.apply_settings(configuration.settings)
        return undone

    def limits_of(self, uid: int) -> UserLimits:
        limits = self._settings.limits_of(uid)
        changed = self._changed.get(uid)
        return limits if changed is None else msgspec.structs.replace(limits, **changed)

    def open_account(self, uid: int) -> Account | None:
        """The account of a user who connects, for a subordinate id that of its owner; None when the
        bus keeps no more of them."""
        account = self._book.find(uid)
        if account is None:
            uid = self.user_of(uid)
            account = self._book.of(uid, self.limits_of(uid), time.monotonic_ns())
        return account

    def user_of(self, uid: int) -> int:
        """The user whose id this is: the owner of a subordinate id."""
        return self._subordinate_ids.owner(uid)

    def records(self) -> list[UserRecord]:
        """Of all users that have an account, in the order in which these were opened, and of the
        others whose limits were changed."""
        now_ns = time.monotonic_ns()
        accounts = {uid: account for uid in self._book.uids() if (account := self._book.find(uid))}
        records = [
            UserRecord(account=account.record(now_ns), limits=self._changed.get(uid))
            for uid, account in accounts.items()
        ]
        records += [
            UserRecord(account=AccountRecord(uid=uid), limits=changed, has_account=False)
            for uid, changed in self._changed.items()
            if uid not in accounts
        ]
        return records

    def restore(self, record: UserRecord) -> None:
        """Go on with what another bus has of a user, unless there is no account left."""
        uid = record.account.uid
        if record.limits is not None:
            known = {name: value for name, value in record.limits.items() if name in _NAMES}
            self._changed[uid] = known
        if not record.has_account:
            return
        account = self._book.of(uid, self.limits_of(uid), time.monotonic_ns())
        if account is not None:
            account.limit(self.limits_of(uid))
            account.restore(record.account)

    def change(self, uid: int, changes: Mapping[str, int | float]) -> UserLimits:
        """Change some limits of a user, for all processes from now on; returns all of them.

        Raises ConfigurationError, and changes nothing.
        """
        for name in changes:
            if name not in _NAMES:
                advice = suggest(name, _NAMES)
                raise ConfigurationError(f"a user has no limit {name[:64]!r}{advice}")
        try:
            limits = msgspec.convert(
                {**msgspec.structs.asdict(self.limits_of(uid)), **changes}, UserLimits
            )
        except msgspec.ValidationError as error:
            raise ConfigurationError(explain(error)) from error
        if changes:
            changed = {name: getattr(limits, name) for name in changes}
            self._changed[uid] = self._changed.get(uid, {}) | changed
            open_account = self._book.find(uid)
            if open_account is not None:
                open_account.limit(limits)
        return limits

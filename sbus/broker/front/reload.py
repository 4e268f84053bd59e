"""Reload: read the configuration again, and apply what can change while the bus runs.

Everything is read, looked up and checked before anything changes. That happens in a thread, because
a directory of users may answer late or never. Then the bus changes at one instant: the parts of the
front, and a command to each worker behind everything that it was sent before. So a client was
either handed over before that command, with the rules of before, and the command carries its new
ones; or it is handed over after it, with the new ones. A worker that is forked later gets the
command before any other.

A client that may not connect any more stays until it leaves, and its backlog is still sent.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from sbus.broker.config.access_policy import PeerRules, encode_rule_set
from sbus.broker.config.differences import changes
from sbus.broker.config.resolution import Configuration, ConfigurationSource
from sbus.broker.config.settings import BusSettings, SettingsUpdate, write_owning_memfd
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.connection_policy import rules_for_peer
from sbus.broker.front.supervisor import Supervisor
from sbus.broker.front.user_limits import EffectiveUserLimits
from sbus.errors import ConfigurationError
from sbus.protocol.admin_results import ReloadResult
from sbus.unix.notify import Notifier

READ_SECONDS_MAX: Final = 30.0
"""For the file and the host's databases of users and groups."""
APPLY_SECONDS_MAX: Final = 5.0
_NAMES_MAX = 200
"""Names of changes in one result, which has to fit a packet, and an event."""
_CLIENTS_PER_CHECKPOINT = 64
"""Asking the kernel for a client's groups and matching them takes some microseconds."""


class HasSettings(Protocol):
    """A part of the front that settings are applied to."""

    def apply_settings(self, settings: BusSettings) -> None: ...


class Parts(NamedTuple):
    """What new settings are applied to, in this order, before the workers."""

    user_limits: EffectiveUserLimits
    others: Sequence[HasSettings]


class Reloader:
    """Reloads the configuration of one bus from its `source`."""

    def __init__(
        self,
        configuration: Configuration,
        source: ConfigurationSource,
        registry: ClientRegistry,
        supervisor: Supervisor,
        parts: Parts,
        notifier: Notifier,
    ) -> None:
        self.in_force = configuration
        self._source = source
        self._registry = registry
        self._supervisor = supervisor
        self._parts = parts
        self._notifier = notifier
        self._lock = trio.Lock()
        self._look_ups = trio.CapacityLimiter(1)
        """A look-up that hangs keeps its thread; no other one begins meanwhile."""

    async def reload(self) -> ReloadResult:
        """Read the configuration again and apply it; one reload at a time.

        Raises ConfigurationError, and then nothing has changed.
        """
        async with self._lock:
            self._notifier.reloading("Reading the configuration again")
            status = "The configuration was not read again"
            try:
                found = changes(self.in_force, await self._read(self._source.reread))
                await self._apply(found.merged)
                by_hand = self._parts.user_limits.undo_changes(found.merged)
                applied = {*found.applied, *by_hand}
                status = "Serves with the configuration that was read again"
            except ConfigurationError as error:
                status = f"Serves with the configuration of before: {error}"
                raise
            finally:
                self._notifier.ready(status)
            behind = await self._supervisor.wait_until_settings_applied(APPLY_SECONDS_MAX)
            return ReloadResult(_some(sorted(applied)), _some(found.needs_restart), behind)

    async def look_up_names(self) -> Configuration:
        """The configuration of the start with the names that are found now. Raises
        ConfigurationError."""
        return await self._read(self._source.look_up_again, self._look_ups)

    async def apply_names(self, found: Configuration) -> bool:
        """Apply a configuration that `look_up_names` returned, unless all names that were missing
        still are, or a reload has replaced them; whether it is in force. What administrators have
        changed stays. Raises ConfigurationError."""
        async with self._lock:
            before = self.in_force
            if not before.missing_names or found.missing_names == before.missing_names:
                return False
            await self._apply(changes(before, found).merged)
            return True

    async def _read(
        self, read: Callable[[], Configuration], limiter: trio.CapacityLimiter | None = None
    ) -> Configuration:
        try:
            with trio.move_on_after(READ_SECONDS_MAX):
                return await trio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=limiter)
        except (OSError, RuntimeError) as error:  # no descriptor is left, or no thread
            raise ConfigurationError(f"the configuration cannot be read now: {error}") from error
        raise ConfigurationError(
            f"the configuration could not be read within {READ_SECONDS_MAX:.0f} seconds; does the "
            "host's directory of users answer?"
        )

    async def _apply(self, configuration: Configuration) -> None:
        """Change the bus. Nothing is awaited from the first change to the last."""
        settings = configuration.settings
        rules = await self._rules_by_client(PeerRules(settings.rules))
        try:
            memfd = write_owning_memfd(SettingsUpdate(settings, rules))
        except OSError as error:
            raise ConfigurationError(
                f"the workers cannot be told of the configuration: {error.strerror}"
            ) from error
        user_limits, others = self._parts
        for part in (user_limits, *others):
            part.apply_settings(settings)
        self._supervisor.distribute_settings(settings.limits, memfd)
        self.in_force = configuration

    async def _rules_by_client(self, rules: PeerRules) -> dict[int, bytes]:
        """The rules that concern each client, also those that are admitted meanwhile."""
        found: dict[int, bytes] = {}
        while missing := [client for client in self._registry if client.number not in found]:
            for client in missing[:_CLIENTS_PER_CHECKPOINT]:
                matching = rules_for_peer(rules, client.sock, client.credentials)
                found[client.number] = encode_rule_set(matching)
            await trio.lowlevel.checkpoint()
        return found


def _some(names: list[str]) -> list[str]:
    """The first of these names, and how many more there are."""
    more = len(names) - _NAMES_MAX
    return names if more <= 0 else [*names[:_NAMES_MAX], f"{more:,} more"]

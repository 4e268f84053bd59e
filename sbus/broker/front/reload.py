"""Reload: read the configuration again, and apply what can change while the bus runs.

Everything is read, looked up and checked before anything changes. That happens in a thread, because
a directory of users may answer late or never. Then the bus changes at one instant: the acceptor,
the accounts, and a command to each worker behind everything that it was told before. So a client
was either handed over before that command, with the numbers of the old rules, and the command
carries its new ones; or it is handed over after it, with the numbers of the new rules. A worker
that is forked later gets the command before anything else.

A client that may not connect any more stays until it leaves, and its backlog is still sent.
"""

from collections.abc import Callable
from typing import Final

import trio

from sbus.broker.config.access_policy import PeerRules, encode_rule_set
from sbus.broker.config.differences import changes
from sbus.broker.config.resolution import Configuration
from sbus.broker.config.settings import BusSettings, SettingsUpdate, write_owning_memfd
from sbus.broker.front.acceptor import concerning
from sbus.broker.front.client_registry import ClientRegistry
from sbus.broker.front.supervisor import Supervisor
from sbus.errors import ConfigurationError
from sbus.protocol.admin_results import ReloadResult
from sbus.unix.notify import Notifier

READ_SECONDS_MAX: Final = 30.0
"""For the file and the host's databases of users and groups."""
OBEY_SECONDS_MAX: Final = 5.0
_NAMES_MAX = 200
"""What is told of what changed has to fit an answer, and an event."""
_CLIENTS_PER_CHECKPOINT = 64
"""Asking the kernel for a client's groups and matching them takes some microseconds."""


class Reloader:
    """Of one bus, whose clients are in `registry`. `reread` says, in any thread, what is to
    hold; `apply_settings` puts it in force in the front, at once and without fail."""

    def __init__(
        self,
        configuration: Configuration,
        reread: Callable[[], Configuration],
        registry: ClientRegistry,
        supervisor: Supervisor,
        apply_settings: Callable[[BusSettings, PeerRules], None],
        notifier: Notifier,
    ) -> None:
        self.in_force = configuration
        self._reread = reread
        self._registry = registry
        self._supervisor = supervisor
        self._apply_settings = apply_settings
        self._notifier = notifier
        self._lock = trio.Lock()

    async def reload(self) -> ReloadResult:
        """Read the configuration anew and go by it; one after the other, if several ask.

        Raises ConfigurationError, and then nothing has changed.
        """
        async with self._lock:
            self._notifier.reloading("Reading the configuration anew")
            status = "The configuration was not read anew"
            try:
                found = changes(self.in_force, await self._read())
                await self._put_in_force(found.merged)
                status = "Serves with the configuration that was read anew"
            except ConfigurationError as error:
                status = f"Serves with the configuration of before: {error}"
                raise
            finally:
                self._notifier.ready(status)
            behind = await self._supervisor.wait_until_reconfigured(OBEY_SECONDS_MAX)
            return ReloadResult(_some(found.applied), _some(found.needs_restart), behind)

    async def _read(self) -> Configuration:
        try:
            with trio.move_on_after(READ_SECONDS_MAX):
                return await trio.to_thread.run_sync(self._reread, abandon_on_cancel=True)
        except (OSError, RuntimeError) as error:  # no descriptor is left, or no thread
            raise ConfigurationError(f"the configuration cannot be read now: {error}") from error
        raise ConfigurationError(
            f"the configuration could not be read within {READ_SECONDS_MAX:.0f} seconds; does the "
            "host's directory of users answer?"
        )

    async def _put_in_force(self, configuration: Configuration) -> None:
        """Change the bus; the last thing that this does, and without giving up control in it."""
        settings = configuration.settings
        rules = PeerRules(settings.rules)
        by_client = await self._concerning(rules)
        try:
            memfd = write_owning_memfd(SettingsUpdate(settings, by_client))
        except OSError as error:
            raise ConfigurationError(
                f"the workers cannot be told of the configuration: {error.strerror}"
            ) from error
        # Accounts first: a worker looks at them when it is told, and perhaps not again.
        self._apply_settings(settings, rules)
        self._supervisor.reconfigure(settings.limits, memfd)
        self.in_force = configuration

    async def _concerning(self, rules: PeerRules) -> dict[int, bytes]:
        """The rules that concern each client, of all that there are in the end."""
        found: dict[int, bytes] = {}
        while missing := [client for client in self._registry if client.number not in found]:
            for client in missing[:_CLIENTS_PER_CHECKPOINT]:
                rules_here = concerning(rules, client.sock, client.credentials)
                found[client.number] = encode_rule_set(rules_here)
            await trio.lowlevel.checkpoint()
        return found


def _some(names: list[str]) -> list[str]:
    """Some of these names, and how many more there are."""
    more = len(names) - _NAMES_MAX
    return names if more <= 0 else [*names[:_NAMES_MAX], f"{more:,} more"]

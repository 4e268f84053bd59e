"""Finding users and groups that the configuration names and the host did not know at the start.

A bus that starts with its host may come before the directory of users. It serves meanwhile, and the
names give nobody any right; see `config.access_policy`.
"""

from typing import Final

import trio

from sbus.broker.events.emitter import EventEmitter
from sbus.broker.front.reload import Reloader
from sbus.broker.front.upgrade import Upgrader
from sbus.broker.ipc.upgrade_link import UpgradeFailed
from sbus.errors import ConfigurationError
from sbus.protocol.admin_events import ConfigurationRejected, NamesMissing

LOOK_UP_SECONDS: Final = 5.0
"""Between two look-ups: a host that boots waits for its directory for some seconds to minutes."""
_SHOWN_MAX = 20
"""Names in one event."""


async def find_names(reloader: Reloader, upgrader: Upgrader, events: EventEmitter) -> None:
    """Look up missing names until all of them are found, or a reload has replaced them."""
    if not reloader.in_force.missing_names:
        return
    events.emit(_missing(reloader))
    failure = ""
    while reloader.in_force.missing_names:
        await trio.sleep(LOOK_UP_SECONDS)
        try:
            found = await reloader.look_up_names()
            with upgrader.change():
                if await reloader.apply_names(found):
                    events.emit(_missing(reloader))
        except UpgradeFailed:
            continue  # a new program that takes over looks names up itself
        except ConfigurationError as error:
            if str(error) != failure:
                failure = str(error)
                events.emit(ConfigurationRejected(why=failure))


def _missing(reloader: Reloader) -> NamesMissing:
    names = reloader.in_force.missing_names
    return NamesMissing(count=len(names), names=list(names[:_SHOWN_MAX]))

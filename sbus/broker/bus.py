"""One bus from start to end: shared memory, fork server, front and workers, put together.

The order matters: the fork server is forked before this process opens its lock and starts its loop.
This module does not know where the listening socket came from.
"""

import socket
from collections.abc import Callable
from functools import partial

import trio

from sbus.broker.config.resolution import Configuration
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.events.sinks import open_log
from sbus.broker.front.acceptor import packet_bytes_carried
from sbus.broker.front.fork_server import ForkServer
from sbus.broker.front_process import Front
from sbus.broker.worker_process import worker_main
from sbus.errors import ConfigurationError, SbusError
from sbus.shared.ordered_log import check_log_size
from sbus.shared.shared_memory import WORKERS_MAX, SharedMemory
from sbus.unix.fd_passing import refuse_descriptors
from sbus.unix.notify import Notifier


def run_bus(
    configuration: Configuration,
    listener: socket.socket,
    *,
    reread: Callable[[], Configuration],
    on_ready: Callable[[], None],
    notifier: Notifier,
    admin_listener: socket.socket | None = None,
    admin_gids: frozenset[int] = frozenset(),
) -> None:
    """Serve on `listener`, which is borrowed, until SIGTERM, SIGINT or the last client's leaving.

    `reread` says anew what is to hold, at any time and in any thread; it raises ConfigurationError.
    Administrators are served on `admin_listener`, likewise borrowed; `admin_gids` are the groups
    whose members are some besides root and the bus's own user.

    Calls `on_ready` once, when every worker serves; what follows is told to `notifier`. Raises
    SbusError when the bus cannot start or cannot go on.
    """
    settings = configuration.settings
    check_settings(settings)
    if settings.refuse_descriptors:
        _refuse_descriptors(listener)
    events = EventEmitter(open_log(settings.log))
    memory = SharedMemory(settings.workers, settings.limits)
    private = [sock for sock in (listener, admin_listener, notifier.sock) if sock is not None]
    fork_server = ForkServer(
        partial(worker_main, memory, settings, events), close=private, events=events
    )
    try:
        memory.lock.open()
        front = Front(
            configuration,
            reread,
            listener,
            memory,
            fork_server,
            on_ready,
            events,
            notifier,
            admin_listener,
            admin_gids,
        )
        trio.run(front.run)
    except BaseExceptionGroup as group:
        expected, unexpected = group.split(SbusError)
        if unexpected is not None or expected is None:
            raise
        raise _first(expected) from None
    finally:
        fork_server.stop()


def check_settings(settings: BusSettings) -> None:
    """Find out whether a bus can start so on this host. Raises ConfigurationError."""
    if not 1 <= settings.workers <= WORKERS_MAX:
        raise ConfigurationError(
            f"workers={settings.workers}: a bus has 1 to {WORKERS_MAX} of them"
        )
    check_log_size(settings.limits)
    carried = packet_bytes_carried(settings)
    if carried < settings.limits.packet_bytes_max:
        raise ConfigurationError(
            f"packet_bytes_max={settings.limits.packet_bytes_max}: this kernel carries at most "
            f"{carried}; raise net.core.wmem_max to half of what you want, or lower the limit"
        )


def _refuse_descriptors(listener: socket.socket) -> None:
    try:
        refuse_descriptors(listener)
    except OSError as error:
        raise ConfigurationError(
            f"this kernel cannot refuse descriptors ({error.strerror}); Linux 6.16 and newer can"
        ) from error


def _first(group: BaseExceptionGroup[SbusError]) -> SbusError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SbusError)
    return error

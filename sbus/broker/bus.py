"""One bus from start to end: its shared memory, its fork server and the front's event loop.

The fork server is forked before this process opens its lock and starts its loop.
"""

import os
from collections.abc import Callable
from functools import partial

import msgspec
import trio

from sbus.broker.config.resolution import Configuration, ConfigurationSource
from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.events.sinks import open_log
from sbus.broker.front.client_store import ResumedBus
from sbus.broker.front.fork_server import ForkServer
from sbus.broker.front_process import Endpoints, FrontResources, run_front
from sbus.broker.worker_process import worker_main
from sbus.compiled import FALLBACK_REASON
from sbus.errors import ConfigurationError, reason_of
from sbus.limits import TIME_SLICE_NS
from sbus.protocol.events import BusNotResumed, StepNotCompiled
from sbus.protocol.keys import DIALECTS
from sbus.shared.log_block import check_log_size
from sbus.shared.shared_memory import MemoryShape, SharedMemory, UnusableMemory, look_at
from sbus.unix.descriptor_store import StoredDescriptors, memory_name
from sbus.unix.notify import Notifier
from sbus.unix.send_buffer import packet_bytes_carried
from sbus.unix.time_slice import request_time_slice
from sbus.unix.user_names import local_user_names

_RESUME_ATTEMPTS_MAX = 3


def run_bus(
    configuration: Configuration,
    endpoints: Endpoints,
    *,
    source: ConfigurationSource,
    on_ready: Callable[[], None],
    notifier: Notifier,
) -> None:
    """Serve at `endpoints`, which are borrowed, until SIGTERM, SIGINT or the last client's leaving.

    `source` is asked for the configuration later. `on_ready` is called once, when every worker
    serves; `notifier` gets what follows. Raises SbusError when the bus cannot start or cannot go
    on.
    """
    settings = configuration.settings
    check_settings(settings)
    events = EventEmitter(open_log(settings.log), local_user_names())
    if FALLBACK_REASON:
        events.emit(StepNotCompiled(why=FALLBACK_REASON))
    left = _resume(endpoints.stored, settings, notifier, events)
    memory, resumed = left or (_make_memory(settings), ResumedBus())
    configuration = _in_shape(configuration, memory.shape)
    request_time_slice(TIME_SLICE_NS)  # for all processes that are forked from now on, too
    link = None if endpoints.predecessor is None else endpoints.predecessor.link
    private = (endpoints.listener, endpoints.admin_listener, notifier.sock, link)
    fork_server = ForkServer(
        partial(worker_main, memory, configuration.settings, events),
        close=[
            *(file for file in (*private, endpoints.files.pidfile) if file is not None),
            *resumed.sockets.values(),
        ],
        files=endpoints.files,
        events=events,
    )
    try:
        memory.lock.open()
        resources = FrontResources(
            configuration=configuration,
            source=source,
            endpoints=endpoints,
            memory=memory,
            resumed=resumed,
            fork_server=fork_server,
            events=events,
            notifier=notifier,
        )
        _run_event_loop(resources, on_ready)
    finally:
        fork_server.stop()


def _run_event_loop(resources: FrontResources, on_ready: Callable[[], None]) -> None:
    try:
        trio.run(run_front, resources, on_ready)
    except BaseExceptionGroup as group:
        raise reason_of(group) from None


def check_settings(settings: BusSettings) -> None:
    """Find out whether a bus can start so on this host. Raises ConfigurationError."""
    check_log_size(settings.limits)
    carried = packet_bytes_carried(settings.limits)
    if carried < settings.limits.packet_bytes_max:
        raise ConfigurationError(
            f"packet_bytes_max={settings.limits.packet_bytes_max}: this kernel carries at most "
            f"{carried}; raise net.core.wmem_max to half of what you want, or lower the limit"
        )


def _resume(
    stored: StoredDescriptors, settings: BusSettings, notifier: Notifier, events: EventEmitter
) -> tuple[SharedMemory, ResumedBus] | None:
    """Go on with what an earlier bus has stored, if there is anything. If that is not possible, end
    its connections. What is of no use any more is removed from the store."""
    last = max(stored.memories, default=None)
    memory = None
    try:
        if last is not None:
            memory = _memory_left(stored.memories[last], settings)
    except (OSError, UnusableMemory) as error:
        if stored.clients:
            events.emit(BusNotResumed(why=str(error)))
    for stored_at_ns, memfd in stored.memories.items():
        os.close(memfd)
        if memory is None or stored_at_ns != last:
            notifier.remove_stored(memory_name(stored_at_ns))
    if memory is None:
        stored.end_connections()
        return None
    has_configured_shape = memory.shape == MemoryShape.of(settings.workers, settings.limits)
    return memory, ResumedBus(last, stored.clients, has_configured_shape)


def _memory_left(memfd: int, settings: BusSettings) -> SharedMemory:
    """The memory that an earlier bus has left. Raises OSError, UnusableMemory."""
    left = look_at(memfd)
    if not left.is_kept:
        raise UnusableMemory("the earlier bus has ended in good order")
    if left.dialect != _dialect_number(settings):
        raise UnusableMemory("the configuration has another dialect now")
    if left.resume_attempts >= _RESUME_ATTEMPTS_MAX:
        count = _RESUME_ATTEMPTS_MAX
        raise UnusableMemory(f"{count} buses have failed with it, one after the other")
    limits = left.shape.applied_to(settings.limits)
    memory = SharedMemory(left.shape.workers, limits, memfd)
    memory.resume_attempts += 1
    return memory


def _in_shape(configuration: Configuration, shape: MemoryShape) -> Configuration:
    """The configuration of a bus that goes on with a memory of this shape."""
    settings = configuration.settings
    limits = shape.applied_to(settings.limits)
    settings = msgspec.structs.replace(settings, workers=shape.workers, limits=limits)
    return msgspec.structs.replace(configuration, settings=settings)


def _make_memory(settings: BusSettings) -> SharedMemory:
    try:
        memory = SharedMemory(settings.workers, settings.limits)
    except OSError as error:
        raise ConfigurationError(f"cannot make the shared memory: {error.strerror}") from error
    memory.dialect = _dialect_number(settings)
    return memory


def _dialect_number(settings: BusSettings) -> int:
    return list(DIALECTS).index(settings.dialect)

"""A worker: one process that serves its share of the clients.

`build_worker` makes its parts and gives each what it needs. The driver gives the machine its ticks
and sleeps in the poller. Only what waits for the front or for a watcher is a trio task of its own.
While there are such tasks, the driver sleeps in trio's event loop instead. A worker ends when the
front tells it to, and at once when the front has ended.

All of this begins with the first command; until then the worker stands by.
"""

import gc
import socket
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import NamedTuple

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.ipc.worker_link import WorkerLink, send_event
from sbus.broker.ipc.worker_protocol import WorkerReady
from sbus.broker.worker.client_moves import ClientMoves
from sbus.broker.worker.command_handler import CommandHandler
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.fair_queue import BacklogSender, FairQueue
from sbus.broker.worker.machine import WorkerMachine
from sbus.broker.worker.monitor import MessageMonitor
from sbus.broker.worker.packet_handler import PacketHandler
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.presence import Presence
from sbus.broker.worker.query_handler import QueryHandler
from sbus.broker.worker.router import Router
from sbus.broker.worker.scheduler import Scheduler
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.standby import stand_by
from sbus.broker.worker.streams import WorkerStreams
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import WaitQueue
from sbus.shared.shared_memory import SharedMemory

_ALLOCATOR_BYTES = 4 * 1024 * 1024
_COLLECTIONS_PER_FULL_ONE = 1_000
"""What a client has here is in no cycle of references, so it is freed when the client leaves. A
full garbage collection looks at all of it, 7 us for each client, and finds nothing. So there is
one after seven million new objects, not after seventy thousand."""


class Worker(NamedTuple):
    """The parts of a worker that its process runs; tests look into the others."""

    context: WorkerContext
    router: Router
    sequencer: Sequencer
    subscriptions: Subscriptions
    wait_queue: WaitQueue
    sessions: Sessions
    commands: CommandHandler
    machine: WorkerMachine

    def start(self) -> bool:
        """Begin to serve, without clients."""
        self.subscriptions.start()
        return True

    def succeed(self) -> bool:
        """Begin to serve with the clients of a predecessor; False when this worker must end."""
        return self.commands.take_over()

    def end(self) -> None:
        """Close what is left, and let others see the last statistics."""
        self.sessions.close_all()
        self.context.emitter.close()
        self.sequencer.share_statistics()


def worker_main(
    memory: SharedMemory,
    settings: BusSettings,
    emitter: EventEmitter,
    worker: int,
    link_socket: socket.socket,
    is_first: bool,
) -> None:
    """Run one worker until it ends, the first of its number or a successor. Takes `link_socket`,
    its end of the link to the front."""
    send_event(link_socket, WorkerReady())
    is_first = is_first and not memory.is_resumed
    if is_first:
        record_heartbeat = partial(memory.record_heartbeat, worker)
        if not stand_by(link_socket, record_heartbeat, settings.limits.heartbeat_seconds):
            return
    memory.lock.open()
    _prime_allocator()
    gc.set_threshold(*gc.get_threshold()[:2], _COLLECTIONS_PER_FULL_ONE)
    start = Worker.start if is_first else Worker.succeed
    trio.run(run_worker, memory, settings, emitter, worker, link_socket, start)


def _prime_allocator() -> None:
    """Make the C library serve buffers of a packet's size from its heap.

    A buffer for the largest packet is allocated for every `recv` and cut to what came. By default
    the allocator maps memory of that size anew each time (16 us); once a larger block was freed it
    takes it from the heap (0.1 us).
    """
    bytes(_ALLOCATOR_BYTES)


async def run_worker(
    memory: SharedMemory,
    settings: BusSettings,
    emitter: EventEmitter,
    worker: int,
    link_socket: socket.socket,
    start: Callable[[Worker], bool],
) -> None:
    """Give the machine ticks until it ends, and let other tasks run while there are any. `start`
    has it begin to serve, if it can."""
    memory.record_heartbeat(worker)
    with closing(Poller(memory.eventfds[worker], link_socket)) as poller:
        async with trio.open_nursery() as tasks:
            link = WorkerLink(link_socket, tasks)
            context = WorkerContext(worker, memory, settings, emitter, link)
            parts = build_worker(context, poller, tasks)
            operations = context.operations
            seconds_max = 0.0 if start(parts) else None
            while seconds_max is not None:
                if tasks.child_tasks:
                    began_ns = time.monotonic_ns()
                    await _let_tasks_run(poller, seconds_max)
                    context.fan_out_times.note_sleep(time.monotonic_ns() - began_ns)
                    seconds_max = 0.0
                seconds_max = parts.machine.tick(parts.machine.poll(poller, seconds_max))
                tick_seconds = time.monotonic() - parts.machine.began_at
                if tick_seconds > operations.seconds_ignored["tick"]:
                    operations.record("tick", tick_seconds)
            parts.end()
            tasks.cancel_scope.cancel()


async def _let_tasks_run(poller: Poller, seconds_max: float) -> None:
    """Run the other tasks until the poller has something, or the time is up."""
    with trio.move_on_after(seconds_max):
        await trio.lowlevel.wait_readable(poller)


def build_worker(context: WorkerContext, poller: Poller, tasks: trio.Nursery) -> Worker:
    """Make the parts of a worker; `tasks` runs what waits for watchers."""
    router = Router(
        context.worker,
        context.dialect,
        context.settings.limits,
        context.rules.may_receive,
        context.operations,
        context.send_times.look,
    )
    monitor = MessageMonitor(context.worker)
    sequencer = Sequencer(context, router, monitor)
    subscriptions = Subscriptions(context, sequencer, router)
    fair_queue: FairQueue[Session | BacklogSender] = FairQueue()
    wait_queue = WaitQueue(sequencer.end_holding)
    presence = Presence(context, sequencer, subscriptions)
    sessions = Sessions(context, subscriptions, fair_queue, wait_queue, poller, presence)
    packet_handler = PacketHandler(context, router, sequencer, subscriptions, sessions)
    scheduler = Scheduler(context, sequencer, packet_handler, sessions, fair_queue, wait_queue)
    query_handler = QueryHandler(context, router, sessions, wait_queue)
    streams = WorkerStreams(context, sessions, monitor, tasks.start_soon)
    moves = ClientMoves(context, router, sequencer, subscriptions, sessions, wait_queue)
    commands = CommandHandler(context, sessions, moves, streams, query_handler, scheduler)
    machine = WorkerMachine(context, sequencer, subscriptions, sessions, scheduler, commands)
    return Worker(
        context, router, sequencer, subscriptions, wait_queue, sessions, commands, machine
    )

"""A worker: one process that serves its share of the clients.

`build_worker` makes its parts and gives each what it needs. Tasks run beside the loop: one carries
out the front's commands, one records heartbeats, one sends what waits for a slow front, and one for
each client with a backlog waits for its socket. A worker ends when the front tells it to, and at
once when the front has ended.

All of this begins with the first command; until then the worker stands by.
"""

import socket
from contextlib import closing
from functools import partial
from typing import NamedTuple

import trio

from sbus.broker.config.settings import BusSettings
from sbus.broker.events.emitter import EventEmitter
from sbus.broker.ipc.worker_link import WorkerLink, send_event
from sbus.broker.ipc.worker_protocol import WorkerReady
from sbus.broker.worker.command_handler import CommandHandler
from sbus.broker.worker.context import WorkerContext
from sbus.broker.worker.fair_queue import FairQueue
from sbus.broker.worker.loop import WorkerLoop
from sbus.broker.worker.monitor import MessageMonitor
from sbus.broker.worker.packet_handler import PacketHandler
from sbus.broker.worker.poller import Poller
from sbus.broker.worker.query_handler import QueryHandler
from sbus.broker.worker.router import Router
from sbus.broker.worker.scheduler import Scheduler
from sbus.broker.worker.sequencer import Sequencer
from sbus.broker.worker.session import BacklogSender, Session
from sbus.broker.worker.sessions import Sessions
from sbus.broker.worker.standby import stand_by
from sbus.broker.worker.subscriptions import Subscriptions
from sbus.broker.worker.wait_queue import WaitQueue
from sbus.shared.ordered_log import has_served
from sbus.shared.shared_memory import SharedMemory

_ALLOCATOR_BYTES = 4 * 1024 * 1024


class Worker(NamedTuple):
    """The parts of a worker that its process runs; tests look into the others."""

    context: WorkerContext
    router: Router
    sequencer: Sequencer
    subscriptions: Subscriptions
    wait_queue: WaitQueue
    sessions: Sessions
    loop: WorkerLoop
    commands: CommandHandler


def worker_main(
    memory: SharedMemory,
    settings: BusSettings,
    emitter: EventEmitter,
    worker: int,
    link_socket: socket.socket,
) -> None:
    """Run one worker until it ends. Takes `link_socket`, its end of the link to the front."""
    memory.lock.open()
    send_event(link_socket, WorkerReady())
    if _may_stand_by(memory, worker):
        record_heartbeat = partial(memory.record_heartbeat, worker)
        if not stand_by(link_socket, record_heartbeat, settings.limits.heartbeat_seconds):
            return
    _prime_allocator()
    trio.run(run_worker, memory, settings, emitter, worker, link_socket)


def _may_stand_by(memory: SharedMemory, worker: int) -> bool:
    """Whether nothing of a predecessor is left in the shared memory that this worker must reset."""
    with memory.lock as words:
        return not has_served(words, worker)


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
    *,
    task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """`task_status` is given the parts of the worker when it serves."""
    memory.record_heartbeat(worker)
    with closing(Poller(memory.eventfds[worker])) as poller:
        async with trio.open_nursery() as tasks:
            async with trio.open_nursery() as writers:
                link = WorkerLink(link_socket, tasks)
                context = WorkerContext(worker, memory, settings, emitter, link)
                parts = build_worker(context, poller, tasks, writers)
                parts.subscriptions.start()
                tasks.start_soon(_carry_out_commands, parts.commands, tasks.cancel_scope)
                tasks.start_soon(_record_heartbeats, context)
                task_status.started(parts)
                await parts.loop.serve()
                tasks.start_soon(parts.loop.send_backlogs)
                stop_seconds = context.settings.limits.stop_seconds_max / 2
                writers.cancel_scope.deadline = trio.current_time() + stop_seconds
            parts.sessions.close_all()
            emitter.close()
            parts.sequencer.share_statistics()
            tasks.cancel_scope.cancel()


async def _carry_out_commands(handler: CommandHandler, worker: trio.CancelScope) -> None:
    """The worker ends with its commands."""
    await handler.run()
    worker.cancel()


async def _record_heartbeats(context: WorkerContext) -> None:
    while True:
        context.memory.record_heartbeat(context.worker)
        await trio.sleep(context.settings.limits.heartbeat_seconds)


def build_worker(
    context: WorkerContext, poller: Poller, tasks: trio.Nursery, writers: trio.Nursery
) -> Worker:
    """Make the parts of a worker. Those that write backlogs run in `writers`, others in `tasks`."""
    router = Router(
        context.worker, context.dialect, context.settings.limits, context.rules.may_receive
    )
    monitor = MessageMonitor(context.worker)
    sequencer = Sequencer(context, router, monitor)
    subscriptions = Subscriptions(context, sequencer, router)
    fair_queue: FairQueue[Session | BacklogSender] = FairQueue()
    wait_queue = WaitQueue(sequencer.end_holding)
    sessions = Sessions(context, subscriptions, fair_queue, wait_queue, poller, writers.start_soon)
    packet_handler = PacketHandler(context, router, sequencer, subscriptions, sessions)
    scheduler = Scheduler(context, packet_handler, sessions, fair_queue, wait_queue)
    loop = WorkerLoop(context, sequencer, subscriptions, sessions, scheduler, poller)
    query_handler = QueryHandler(context, router, sessions, wait_queue)
    start_task = tasks.start_soon
    commands = CommandHandler(context, sessions, monitor, query_handler, loop, start_task)
    return Worker(context, router, sequencer, subscriptions, wait_queue, sessions, loop, commands)

"""What happens to a real bus, or to a worker of it, in the middle of a section."""

import os
import signal
import time
from typing import TYPE_CHECKING

from sbus.bench.proc import process_tree
from tests.protocol.plain_link import PATIENCE_SECONDS
from tests.support.bus import wait_until_gone
from tests.support.processes import kill_at_once, process_name, wait_until_stopped
from tests.support.threads import wait_until
from tests.support.upgrades import serving_pid, upgrade

if TYPE_CHECKING:
    from tests.protocol.player import Link
    from tests.protocol.real_bus import RealBus

_WORKER = "sbusd-worker-"


def pause(milliseconds: int) -> None:
    time.sleep(milliseconds / 1000)


def happen(bus: "RealBus", name: str, link: "Link | None") -> None:
    word, _, number = name.partition(" ")
    if word == "wait":
        pause(int(number))
    elif word == "upgrade":
        _upgrade(bus)
    elif word in ("restart", "resume"):
        _end_and_start(bus, word)
    else:
        assert link is not None, f"{name} needs a client"
        worker = bus.report(link)["worker"] if word != "die" or not bus.stopped else bus.stopped[0]
        _of_worker(bus, word, worker, link)


def _of_worker(bus: "RealBus", word: str, worker: int, link: "Link") -> None:
    if word == "move":
        bus.move(link, (worker + 1) % bus.workers)
    elif word == "stop":
        bus.barrier([])
        bus.clients()  # see `_die`
        os.kill(pid := _pid_of(bus, worker), signal.SIGSTOP)
        wait_until_stopped(pid)
        bus.stopped.append(worker)
    elif word == "continue":
        for stopped in bus.stopped:
            os.kill(_pid_of(bus, stopped), signal.SIGCONT)
        bus.stopped.clear()
        bus.barrier([])
    else:
        assert word == "die"
        _die(bus, worker)


def _pid_of(bus: "RealBus", worker: int) -> int:
    (pid,) = (pid for pid in bus.pids if process_name(pid) == f"{_WORKER}{worker}")
    return pid


def _die(bus: "RealBus", worker: int) -> None:
    """Kill it, and return when its successor serves."""
    bus.is_used_up = bus.counts_anew = True
    if worker not in bus.stopped:
        bus.clients()  # workers answer between turns, when they have noted as done what they did
    os.kill(pid := _pid_of(bus, worker), signal.SIGKILL)
    assert wait_until_gone(pid, PATIENCE_SECONDS)
    bus.stopped = [it for it in bus.stopped if it != worker]

    def is_replaced() -> bool:
        found = bus.asks.ask("workers")["workers"][worker]
        return found["pid"] not in (0, pid) and found["state"] == "serving"

    wait_until(is_replaced, f"worker {worker} serves again", PATIENCE_SECONDS)
    bus.pids = process_tree(bus.main_pid)
    bus.barrier([])


def _upgrade(bus: "RealBus") -> None:
    bus.is_used_up = True
    bus.disconnect()
    upgrade(bus.running)
    bus.main_pid = serving_pid(bus.running)
    bus.begin()


def _end_and_start(bus: "RealBus", word: str) -> None:
    """All processes of the bus end, and the service manager starts it with what it has stored."""
    manager = bus.manager
    assert manager is not None
    bus.is_used_up = bus.counts_anew = True
    bus.disconnect()
    kept = [link for link in bus.links if link.sock.fileno() >= 0]
    wait_until(lambda: bus.is_stored(kept), "the clients are stored", PATIENCE_SECONDS)
    if word == "restart":
        bus.running.process.send_signal(signal.SIGUSR1)
    else:
        kill_at_once(bus.pids)
    for pid in bus.pids:
        assert wait_until_gone(pid, PATIENCE_SECONDS)
    bus.stack.close()
    bus.start()

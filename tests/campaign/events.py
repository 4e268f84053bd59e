"""What happens to the bus of a run, in a thread of its own: the events of its plan, in order."""

import errno
import json
import os
import re
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from tests.campaign.bus import CampaignBus
from tests.campaign.clients import identity
from tests.campaign.plan import Event, Plan
from tests.history.log import Log
from tests.support.client_sockets import check_sockets
from tests.support.descriptor_store import kernel_refuses_descriptors
from tests.support.raw_client import RawClient
from tests.support.threads import meanwhile
from tests.support.users import UNPRIVILEGED, effective_user

_BETWEEN_RESTARTS_SECONDS = 5.0
"""A bus that ends sooner after its start may lose its clients."""
_STOP_SECONDS = 0.5
_REFUSAL_MS = 5_000
_OUT_OF_TIME = re.compile(r"within [\d.]+ s$")
"""How the error of an upgrade ends that took longer than the bus allows."""
_UNDER_WAY = "another program is taking over already"
_CONNECTIONS = 300


class Events:
    """Those of one run."""

    def __init__(self, bus: CampaignBus, plan: Plan, log: Log, is_on_own_disk: bool) -> None:
        self._bus = bus
        self._plan = plan
        self._log = log
        self._is_on_own_disk = is_on_own_disk
        self._may_be_settling = False
        """A worker that has died may be why the bus cannot do something."""
        self._may_be_upgrading = False
        """An upgrade was not answered, or the bus has started, perhaps with another number of
        workers than it is to have, which it then changes by itself."""
        self._killed: set[int] = set()
        self._workers = plan.workers
        self._restart_at = time.monotonic() + _BETWEEN_RESTARTS_SECONDS
        self._is_kept = kernel_refuses_descriptors()
        self.counts: Counter[str] = Counter()
        """Of events by name, and how many moves and upgrades were tried and done."""

    def run(self, stop: threading.Event) -> None:
        begun = time.monotonic()
        self._log.event(f"setting {self._workers} {self._plan.backlog}")
        for event in self._plan.events:
            if stop.wait(max(0.0, begun + event.at - time.monotonic())):
                return
            self._happen(event)

    def _happen(self, event: Event) -> None:
        self._may_be_settling = self._may_be_settling and not self.all_serve()
        call: Callable[[float], bool | None] = getattr(self, "_" + event.name.replace("-", "_"))
        if call(event.chance) is not False:
            self.counts[f"event {event.name}"] += 1

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """What the bus answers an administrator, which is a fault if there is none in time."""
        try:
            with identity:
                admin = self._bus.administer()
            with admin:
                packet = json.dumps({"verb": verb, "id": 1, **arguments}).encode()
                return admin.exchange(packet)
        except (OSError, AssertionError) as error:
            if not self._may_be_settling:
                self._log.event(f"fault {verb} was not answered: {error!r}")
            return {}

    def all_serve(self) -> bool:
        """Whether all workers serve, and none of them was killed."""
        workers = self.ask("workers").get("result", {}).get("workers", [])
        return bool(workers) and all(
            one["pid"] and one["pid"] not in self._killed and one["state"] == "serving"
            for one in workers
        )

    def _death(self, worker: int, pid: int) -> None:
        self._log.event(f"death {worker}")
        self._killed.add(pid)
        self._may_be_settling = True

    # -- events --------------------------------------------------------------------------------
    def _move(self, chance: float) -> None:
        """Some clients, to one worker each."""
        self._move_clients(self._clients(), chance, None)

    def _clients(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.ask("clients").get("result", {}).get("clients", [])
        return listed

    def _move_clients(self, listed: list[dict[str, Any]], chance: float, to: int | None) -> None:
        for number in range(min(len(listed), 1 + int(chance * 6))):
            at = int(chance * 7919 + number * 31)
            chosen = listed[at % len(listed)]
            client = chosen["client"]
            worker = at % self._workers if to is None else to
            self._log.event(f"move-begin {client} {worker}")
            reply = self.ask("move", client=client, worker=worker)
            self._log.event(f"move-end {client}")
            if worker != chosen["worker"]:
                self.counts["moves tried"] += 1
                self.counts["moves done"] += "result" in reply

    def _check_sockets(self) -> None:
        """The clients' sockets are non-blocking, also while clients are moved."""
        try:
            with identity:
                check_sockets(self._bus.pids())
        except AssertionError as error:
            self._log.event(f"fault {error}")

    def _upgrade(self, chance: float) -> None:
        self._workers = max(1, self._plan.workers + int(chance * 3) - 1)
        with identity:
            self._bus.configure(self._workers)
            self._bus.run_next_tree()
        reply = self.ask("upgrade")
        self.counts["upgrades tried"] += 1
        self.counts["upgrades done"] += "result" in reply
        self._log.event(f"upgraded {self._workers} {'result' in reply}")
        text = reply.get("error", {}).get("text", "")
        is_under_way = self._may_be_upgrading and text == _UNDER_WAY
        if text:
            if _OUT_OF_TIME.search(text):
                self.counts["upgrades out of time"] += 1
            elif not (self._may_be_settling or is_under_way):
                self._log.event(f"fault upgrade: {text}")
            version = self.ask("version").get("result", {})
            self._workers = version.get("workers", self._workers)
        self._may_be_upgrading = not reply or is_under_way

    def _pick_worker(self, chance: float) -> tuple[int, int]:
        workers = sorted(self._bus.workers().items())
        return workers[int(chance * len(workers))] if workers else (0, 0)

    def _kill_worker(self, chance: float) -> bool:
        worker, pid = self._pick_worker(chance)
        if not pid:
            return False
        self._death(worker, pid)
        _send_signal(pid, signal.SIGKILL)
        return True

    def _stop_worker(self, chance: float) -> bool:
        """For a moment, while clients are moved to it, or until it is killed."""
        worker, pid = self._pick_worker(chance * 2 % 1)
        if not pid:
            return False
        is_short = chance < 0.5
        listed = self._clients() if is_short else []  # which needs all workers
        _send_signal(pid, signal.SIGSTOP)
        if is_short:
            # Clients that are moved to it meanwhile wait for it.
            with meanwhile(lambda _: self._move_clients(listed, chance, worker)):
                time.sleep(_STOP_SECONDS)
                self._check_sockets()
                _send_signal(pid, signal.SIGCONT)
        else:
            time.sleep(_STOP_SECONDS)
            self._death(worker, pid)
            _send_signal(pid, signal.SIGKILL)
        return True

    def _stop_front(self, _: float) -> None:
        pid = self._bus.main_pid
        _send_signal(pid, signal.SIGSTOP)
        time.sleep(_STOP_SECONDS)
        _send_signal(pid, signal.SIGCONT)

    def _kill_front(self, _: float) -> bool:
        return self._restart(self._bus.kill_front)

    def _kill_all(self, _: float) -> bool:
        return self._restart(self._bus.kill)

    def _restart(self, end: Callable[[], None]) -> bool:
        if time.monotonic() < self._restart_at:
            return False
        self._log.event("restart" if self._is_kept else "new-bus")
        with identity:
            end()
            self._bus.start()
        self._may_be_settling = self._may_be_upgrading = True
        self._restart_at = time.monotonic() + _BETWEEN_RESTARTS_SECONDS
        return True

    def _reload(self, chance: float) -> None:
        with identity:
            self._bus.configure(self._workers, 1 + int(chance * 64))
        self.ask("reload")

    def _kick(self, chance: float) -> None:
        if listed := self._clients():
            self._log.event("kick")
            self.ask("kick", client=listed[int(chance * len(listed))]["client"])

    def _full_disk(self, chance: float) -> bool:
        """Nothing can be written where the bus has its log and its files."""
        if not self._is_on_own_disk:
            return False
        filler = self._bus.directory / "filler"
        try:
            with identity, filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self.counts["full disk"] += 1
        self._log.event("full-disk")
        self._upgrade(chance)
        with identity:
            filler.unlink()
        return True

    def _connections(self, _: float) -> None:
        """Another user has as many connections as it can get, for a moment."""
        refused = select.poll()
        with ExitStack() as stack:
            for _number in range(_CONNECTIONS):
                with identity, effective_user(UNPRIVILEGED), suppress(OSError):
                    raw = RawClient(self._bus.bus_address, timeout_s=0.05)
                    stack.enter_context(raw)
                    refused.register(raw, 0)  # for its end
            if self._plan.descriptors and refused.poll(_REFUSAL_MS):
                self.counts["descriptors used up"] += 1
            time.sleep(_STOP_SECONDS)


def _send_signal(pid: int, signum: signal.Signals) -> None:
    with identity, suppress(ProcessLookupError):
        os.kill(pid, signum)

"""Workers are killed at random under load: `python -m tests.broker.deaths_campaign --help`.

With `--stop` they are stopped instead, and the bus has to find out: one at a time, because it kills
one at a time.

Every client publishes numbered messages under a key of its own, and subscribes to the keys of some
others. Whatever dies, it keeps its connection, subscriptions and choices, and for each key that it
receives

    numbers grow: none comes twice or too late
    a number that is missing   was announced by a `!/lost` where it is missing, or the publisher was
                               told that so many packets of it were not processed
    what a client was told     is what it misses, but for one delivery for each death
"""

import argparse
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.bus import Bus, running_bus
from tests.support.processes import worker_pids
from tests.support.raw_client import PACKET_BYTES_MAX, RawClient

KEYS_EACH = 4
"""To how many others' keys a client subscribes."""
_LOST = b"CMSG !/lost\0"
_PACKETS_LOST = b"CMSG !/error\0packets-lost "
_WHOAMI = b"CMSG !/cred/whoami\0"
_END_SECONDS_MAX = 20.0
_SILENCE = ("--limit", "worker_silence_seconds_max=1")


class CheckedClient:
    """A client that checks what it receives."""

    def __init__(self, raw: RawClient, number: int, keys: Sequence[int]) -> None:
        self._raw = raw
        self._number = number
        self.keys = keys
        self.sent = 0
        self.last = dict.fromkeys(keys, -1)
        """The last number of each key."""
        self._was_told: set[int] = set()
        """Keys of which messages may be missing since a notice."""
        self.missing: Counter[int] = Counter()
        """By key: messages that are missing without a notice."""
        self.missing_all = 0
        self.lost = 0
        """As notices said."""
        self.has_unknown_losses = False
        self.received = 0
        self.notices = 0
        self.unprocessed = 0
        """Packets of this client that were not processed, as the bus says."""
        self.replies = 0
        raw.control(b"!/notices/on")
        raw.control(b"echo/off")
        for key in (*keys, number):
            raw.sub(b"%d" % key)
        raw.whoami()
        raw.sock.setblocking(False)

    def fileno(self) -> int:
        return self._raw.fileno()

    def publish(self) -> None:
        """Send the next message, if the socket takes it."""
        try:
            self._raw.sock.send(b"MSG %d\0%d" % (self._number, self.sent))
        except BlockingIOError:
            return
        self.sent += 1

    def change_subscriptions(self, pattern: bytes) -> None:
        """Subscribe to a pattern that nobody publishes, and undo that."""
        self._raw.sock.send(b"SUB " + pattern)
        self._raw.sock.send(b"UNSUB " + pattern)

    def request(self) -> None:
        self._raw.sock.send(b"CMSG !/cred/whoami")

    def receive(self) -> None:
        """Check what is here."""
        for packet in self._packets():
            if packet.startswith(b"MSG "):
                key, _, payload = packet[4:].partition(b"\0")
                self._check(int(key), int(payload))
            elif packet.startswith(_LOST):
                self.notices += 1
                count = packet.removeprefix(_LOST)
                self.has_unknown_losses |= count == b"?"
                self.lost += 0 if count == b"?" else int(count)
                self._was_told.update(self.keys)
            elif packet.startswith(_PACKETS_LOST):
                self.unprocessed += int(packet.removeprefix(_PACKETS_LOST).split()[0])
            else:
                assert packet.startswith(_WHOAMI), packet
                self.replies += 1

    def _packets(self) -> Iterator[bytes]:
        while True:
            try:
                packet = self._raw.sock.recv(PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            assert packet, f"client {self._number} was disconnected"
            yield packet

    def _check(self, key: int, number: int) -> None:
        assert key in self.last, (
            f"client {self._number} never subscribed to {key}, or wants no echo"
        )
        last = self.last[key]
        assert number > last, f"{number} of {key} came behind {last}"
        self.missing_all += number - last - 1
        if key not in self._was_told:
            self.missing[key] += number - last - 1
        self._was_told.discard(key)
        self.last[key] = number
        self.received += 1


class Campaign:
    """Clients of one bus, and the deaths of its workers."""

    def __init__(
        self, bus: Bus, clients: int, chance: random.Random, signum: signal.Signals
    ) -> None:
        self._bus = bus
        self._signum = signum
        self._victim = 0
        self._chance = chance
        self.deaths = 0
        self._stack = ExitStack()
        others = range(clients)
        self.clients = [
            CheckedClient(
                self._stack.enter_context(bus.connect()),
                number,
                [key for key in chance.sample(others, KEYS_EACH) if key != number],
            )
            for number in range(clients)
        ]

    def close(self) -> None:
        self._stack.close()

    def run(self, seconds: float, seconds_per_death: float, messages_per_second: int) -> None:
        """Publish and receive, and kill a random worker again and again."""
        ends_at = time.monotonic() + seconds
        kill_at = time.monotonic() + seconds_per_death
        pause = 1 / messages_per_second
        publish_at = time.monotonic()
        while (now := time.monotonic()) < ends_at:
            if now >= kill_at:
                kill_at += seconds_per_death
                self._end_worker()
            while publish_at <= now:
                publish_at += pause
                self._chance.choice(self.clients).publish()
            self.receive(min(publish_at, kill_at) - now)

    def _end_worker(self) -> None:
        """Send the signal to a random worker, unless the last one is still there."""
        pids = list(worker_pids(self._bus).values())
        if pids and self._victim not in pids:
            self._victim = self._chance.choice(pids)
            os.kill(self._victim, self._signum)
            self.deaths += 1

    def receive(self, seconds_max: float) -> None:
        readable, _, _ = select.select(self.clients, [], [], max(0, seconds_max))
        for client in readable:
            client.receive()

    def finish(self) -> None:
        """Have every client receive a reply, then one message more of each key, without a death."""
        self._wait_for_replies()
        for client in self.clients:
            client.publish()
        self._wait_for_replies()

    def _wait_for_replies(self) -> None:
        """Two rounds: what others published before their replies arrives before the second one."""
        for _ in range(2):
            for client in self.clients:
                client.replies = 0
                client.request()
            ends_at = time.monotonic() + _END_SECONDS_MAX
            while waiting := [client for client in self.clients if not client.replies]:
                assert time.monotonic() < ends_at, f"{len(waiting)} clients get no reply"
                self.receive(0.1)

    def check(self) -> None:
        """Everybody has everybody's last message, and what is missing was announced."""
        for client in self.clients:
            for key in client.keys:
                publisher = self.clients[key]
                assert client.last[key] == publisher.sent - 1, "a subscription was lost"
                assert client.missing[key] <= publisher.unprocessed, (
                    f"{client.missing[key]} messages are missing, {publisher.unprocessed} announced"
                )
        self._check_numbers()

    def _check_numbers(self) -> None:
        in_doubt = 0
        for client in self.clients:
            if client.has_unknown_losses:
                continue
            unprocessed = sum(self.clients[key].unprocessed for key in client.keys)
            assert client.missing_all <= client.lost + unprocessed
            in_doubt += max(0, client.lost - client.missing_all)
        assert in_doubt <= self.deaths, f"{in_doubt} losses more than {self.deaths} deaths explain"

    def report(self) -> str:
        clients = self.clients
        return (
            f"{self.deaths} deaths, {len(clients)} clients, {sum(it.sent for it in clients)} sent, "
            f"{sum(it.received for it in clients)} received, {sum(it.notices for it in clients)} "
            f"notices of {sum(it.lost for it in clients)} losses, "
            f"{sum(it.has_unknown_losses for it in clients)} clients with unknown losses, "
            f"{sum(it.unprocessed for it in clients)} packets not processed"
        )


def run_campaign(
    directory: Path,
    *,
    clients: int,
    workers: int,
    seconds: float,
    seconds_per_death: float,
    messages_per_second: int,
    stop: bool = False,
    seed: int = 1,
) -> str:
    """Run one, check it, and return what happened."""
    signum = signal.SIGSTOP if stop else signal.SIGKILL
    with running_bus(directory, *_SILENCE, workers=workers) as bus:
        campaign = Campaign(bus, clients, random.Random(seed), signum)
        try:
            campaign.run(seconds, seconds_per_death, messages_per_second)
            campaign.finish()
            campaign.check()
        finally:
            campaign.close()
    return campaign.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seconds-per-death", type=float, default=1)
    parser.add_argument("--messages-per-second", type=int, default=2_000)
    parser.add_argument("--stop", action="store_true", help="stop workers instead of killing them")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sys.stdout.write(run_campaign(Path(directory), **vars(options)) + "\n")


if __name__ == "__main__":
    main()

"""What clients and others can notice of a bus in one process, to be compared."""

import random
from typing import Any

from sbus.broker.worker.session import Session
from sbus.shared.accounts import BLOCKING_CLIENTS, MATCH_STEPS, SUBSCRIPTION_BYTES, SUBSCRIPTIONS
from sbus.shared.in_flight import NOBODY
from sbus.shared.shared_memory import LOG_HEAD
from tests.fuzz.one_process_bus import OneProcessBus, Peer

PATTERNS = (
    b"a",
    b"a/",
    b"a/*",
    b"a/**",
    b"*/x",
    b"**/x",
    b"*x/y",
    b"",
    b"!/cred////s",
    b"!/cred/100///*",
)
CHOICES = (
    b"echo/off",
    b"echo/on",
    b"!/notices/on",
    b"blocking/soft/discard",
    b"blocking/hard/block",
    b"blocking/soft/block",
    b"order/random",
    b"age/60000",
)
KINDS = (SUBSCRIPTIONS, SUBSCRIPTION_BYTES, MATCH_STEPS, BLOCKING_CLIENTS)
KEYS = (b"a", b"a/", b"a/b", b"a/x", b"b/x", b"c", b"!/cred////s", b"!/cred/100///s")


def choose(bus: OneProcessBus, peers: list[Peer], chance: random.Random) -> None:
    """Have a client subscribe, unsubscribe or choose something."""
    word = chance.choice((b"SUB ", b"SUB ", b"UNSUB ", b"CMSG "))
    choices = CHOICES if word == b"CMSG " else PATTERNS
    tell(bus, chance.choice(peers), word + chance.choice(choices))


def tell(bus: OneProcessBus, peer: Peer, *packets: bytes) -> None:
    for packet in packets:
        peer.send(packet)
    bus.settle()


def interrupt_batch(bus: OneProcessBus, worker: int, messages: int = 1) -> None:
    """Leave what a worker leaves when it dies as soon as its batch has its place, behind all that
    the log has; of its messages, the key of the first one is known, which is `k`."""
    in_flight = bus.workers[worker].context.in_flight
    number = in_flight.begin_batch(NOBODY, [b"k"])
    with bus.memory.lock as words:
        in_flight.note_step(words, words[LOG_HEAD])
        in_flight.place_batch(words, number, messages)


def state(session: Session) -> dict[str, Any]:
    """All that a client and other clients can notice of it."""
    return {
        "patterns": session.patterns,
        "echo": session.echo,
        "notices": session.outbox.wants_notices,
        "flood control": session.outbox.flood_control,
        "rules": {pattern: rule.pack() for pattern, rule in session.rule_by_pattern.items()},
    }


def states(bus: OneProcessBus) -> dict[int, dict[str, Any]]:
    return {one.client: state(one) for worker in bus.workers for one in worker.sessions}


def usage(bus: OneProcessBus) -> list[int]:
    return [bus.account.use(kind) for kind in KINDS]


def routes(bus: OneProcessBus) -> list[object]:
    """Where each worker sends messages, by the numbers of the clients."""
    found: list[object] = []
    for worker in bus.workers:
        assert worker.sequencer.read_table()
        client_of: dict[object, int] = {
            session.outbox: session.client for session in worker.sessions
        }
        for key in KEYS:
            route, _ = worker.router._look_up_uncached(key)
            rules = [rule.client for rules in route.backpressure_rules.values() for rule in rules]
            recipients = [client_of[recipient] for recipient in route.recipients]
            found.append((route.mask, sorted(recipients), sorted(rules)))
    return found

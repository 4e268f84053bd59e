"""Random and damaged packets through the parser and whole sessions: `python -m tests.fuzz.packets`.

Packets are made in campaigns, each with its own seed and a bus of its own, in both dialects by
turns. A campaign that fails names its seed: `--seed S` begins with that one, and sends the same
packets again; the turns of the workers depend on the clock, too. The ordinary tests run some
campaigns, this program any number of packets.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

from sbus.limits import Limits
from sbus.protocol.keys import DIALECTS
from tests.fuzz.generator import PacketMaker
from tests.fuzz.one_process_bus import one_process_bus
from tests.fuzz.parts import both_dialects
from tests.fuzz.sessions import Sessions

CAMPAIGN_PACKETS = 25_000
LIMITS = Limits(
    packet_bytes_max=4096,
    key_bytes_max=256,
    pattern_bytes_max=255,
    key_segments_max=16,
    pattern_segments_max=15,
    client_subscription_bytes_max=1500,
    batch_packets_max=10,
    batch_bytes_max=8192,
    quantum_units=40,
    log_bytes=128 * 1024,
    table_bytes=1024 * 1024,
    route_cache_bytes_max=128 * 1024,
)
"""Small, so that every bound is met: the log goes round, the cache forgets, clients run out of
room."""


def maker_of(seed: int) -> tuple[str, PacketMaker]:
    """The dialect of a seed's campaign, and its packets."""
    dialect = "dot" if seed % 2 else "slash"
    return dialect, PacketMaker(seed, DIALECTS[dialect].separator, LIMITS, has_ages=True)


def through_parser(seed: int, count: int) -> Counter[str]:
    """One campaign through the pure parts; returns verdicts by code, of both dialects."""
    _, maker = maker_of(seed)
    parts = both_dialects(seed, LIMITS)
    for number in range(count):
        packet = maker.packet()
        try:
            for each in parts:
                each.take(packet)
        except Exception as error:
            text = f"seed {seed}, parser, packet {number}: {packet!r}: {error!r}"
            raise AssertionError(text) from error
    for each in parts:
        each.end()
    return sum((each.counts for each in parts), Counter())


def through_sessions(seed: int, count: int) -> Counter[str]:
    """One campaign through a bus; returns what its workers counted."""
    dialect, maker = maker_of(seed)
    sent = 0
    try:
        with one_process_bus(dialect, LIMITS) as bus:
            sessions = Sessions(bus, dialect, LIMITS, _endless(maker), seed)
            bus.settle()
            while sent < count:
                sent += sessions.round(count - sent)
            sessions.end()
            return bus.counts()
    except Exception as error:
        text = f"seed {seed}, {dialect} sessions, in the round behind packet {sent}: {error!r}"
        raise AssertionError(text) from error


def _endless(maker: PacketMaker) -> Iterator[bytes]:
    while True:
        yield maker.packet()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.fuzz.packets", description=__doc__)
    options.add_argument("--count", type=int, default=1_000_000, help="packets in all")
    options.add_argument("--seed", type=int, default=0, help="of the first campaign")
    given = options.parse_args()
    parser_counts: Counter[str] = Counter()
    session_counts: Counter[str] = Counter()
    began_at = time.monotonic()
    for done in range(0, given.count, CAMPAIGN_PACKETS):
        seed = given.seed + done // CAMPAIGN_PACKETS
        count = min(CAMPAIGN_PACKETS, given.count - done)
        parser_counts += through_parser(seed, count)
        session_counts += through_sessions(seed, count)
        if sys.stderr.isatty():
            print(f"\r{done + count} packets", end="", file=sys.stderr)
    seconds = time.monotonic() - began_at
    print(f"{given.count} packets from seed {given.seed} on, in {seconds:.0f} s")
    print("parser, in either dialect:", dict(parser_counts.most_common()))
    print("sessions:", dict(session_counts.most_common()))


if __name__ == "__main__":
    main()

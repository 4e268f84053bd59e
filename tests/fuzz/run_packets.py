"""Packets by ten users against running buses: `python -m tests.fuzz.run_packets` (as root).

Each campaign has a bus and a seed of its own; twenty-four seeds in a row have 1, 2 and 4 workers,
both dialects, both steps, with and without access rules. `live_campaign` has what is checked. A
campaign that fails names its seed, which sends the same packets again, and the others go on. The
time at which clients and workers do something is not repeated.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from collections import Counter
from functools import partial

from tests.fuzz.live_campaign import run_campaign
from tests.fuzz.live_setting import setting_of

CAMPAIGN_PACKETS = 100_000


def attempt(seed: int, packets: int) -> tuple[Counter[str], str]:
    """What a campaign did, and how it failed, if it did."""
    try:
        return run_campaign(seed, packets), ""
    except AssertionError as error:
        return Counter(failed=1), str(error)


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.fuzz.run_packets", description=__doc__)
    options.add_argument("--count", type=int, default=1_000_000, help="packets in all")
    options.add_argument("--seed", type=int, default=0, help="of the first campaign")
    options.add_argument("--jobs", type=int, default=4, help="campaigns at the same time")
    given = options.parse_args()
    seeds = range(given.seed, given.seed + -(-given.count // CAMPAIGN_PACKETS))
    packets = min(given.count, CAMPAIGN_PACKETS)
    tally: Counter[str] = Counter()
    began_at = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=4) as pool:
        for done, failure in pool.imap_unordered(partial(attempt, packets=packets), seeds):
            tally += done
            if failure:
                print(failure, flush=True)
            if sys.stderr.isatty():
                print(f"\r{tally['packets']} packets", end="", file=sys.stderr)
        pool.close()
        pool.join()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_us = 1e6 * (usage.ru_utime + usage.ru_stime) / max(1, tally["packets"])
    seconds = time.monotonic() - began_at
    settings = {setting_of(seed) for seed in seeds}
    print(
        f"{tally['packets']} packets in {seconds:.0f} s ({tally['packets'] / seconds:.0f}/s), "
        f"{cpu_us:.0f} us of CPU time each, "
        f"seeds {seeds[0]} to {seeds[-1]}, {len(settings)} kinds of buses"
    )
    print(", ".join(f"{name}: {count}" for name, count in sorted(tally.items())))
    sys.exit(bool(tally["failed"]))


if __name__ == "__main__":
    main()

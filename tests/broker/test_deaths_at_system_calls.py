"""A worker may die before any of its system calls, and its clients miss nothing unannounced.

All of the calls: `python -m tests.broker.deaths_at_system_calls --jobs 2`.
"""

from concurrent.futures import ThreadPoolExecutor

from tests.broker.deaths_at_system_calls import count_calls, dies_at
from tests.support.needs import needs_tool

pytestmark = needs_tool("strace", "strace")


def test_every_promise_is_kept() -> None:
    """Before one call of each name, in the middle of its calls. Those that are made at times, not
    for packets, may be fewer in the second run."""
    calls = count_calls()
    middle = [(number + 1) // 2 for number in calls.values()]
    with ThreadPoolExecutor(2) as pool:
        died = dict(zip(calls, pool.map(dies_at, calls, middle), strict=True))
    assert {"epoll_wait", "flock", "recvfrom", "sendto"} <= {name for name in died if died[name]}

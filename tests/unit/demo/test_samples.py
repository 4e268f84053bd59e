"""What the demo reads from the host: the kernel's formats, as proc(5) describes them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.demo.samples import (
    Message,
    host_name,
    interface_bytes,
    load,
    machine,
    memory,
    process_ticks,
    processes,
    processor_shares,
    processor_ticks,
    segment,
    traffic_rates,
)

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:    2048       9    0    0    0     0          0         0     2048       9    0
  eth0: 1048576     800    0    0    0     0          0         0    51200     400    0
"""


@given(st.binary())
def test_any_name_becomes_one_plain_segment(name: bytes) -> None:
    assert re.fullmatch(rb"[A-Za-z0-9._:+-]{1,64}", segment(name))


def test_load() -> None:
    assert dict(load("0.50 0.25 0.10 3/211 12345\n")) == {
        b"load/1min": b"0.50",
        b"load/5min": b"0.25",
        b"load/15min": b"0.10",
        b"load/running": b"3",
    }


def test_memory_is_in_mebibytes() -> None:
    text = "MemTotal: 4096 kB\nMemAvailable: 1024 kB\nCached: 512 kB\nDirty: 0 kB\n"
    text += "SwapTotal: 2048 kB\nSwapFree: 1024 kB\nHugePages_Total: 0\n"
    assert dict(memory(text)) == {
        b"memory/available": b"1.0 MiB",
        b"memory/used": b"3.0 MiB",
        b"memory/cached": b"0.5 MiB",
        b"memory/dirty": b"0.0 MiB",
        b"memory/swap_used": b"1.0 MiB",
    }


def test_processor_shares_are_of_the_time_between() -> None:
    before = processor_ticks("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 10 0 10 100 0 0 0 0 0 0\nintr 1\n")
    after = processor_ticks("cpu0 30 5 20 150 10 0 5 0 0 0\ncpu1 1 1 1 1 1 1 1 1 1 1\n")
    # 100 ticks: user 20 + nice 5, system 10 + softirq 5, idle 50, iowait 10.
    assert dict(processor_shares(before, after)) == {
        b"cpu/0/user": b"25 %",
        b"cpu/0/system": b"15 %",
        b"cpu/0/iowait": b"10 %",
        b"cpu/0/busy": b"40 %",
    }
    assert list(processor_shares(after, after)) == []


def test_traffic_is_a_rate() -> None:
    counters = interface_bytes(NET_DEV)
    assert counters == {"lo": (2048, 2048), "eth0": (1048576, 51200)}
    assert list(traffic_rates({"lo": (0, 1024)}, counters, 2.0)) == [
        (b"net/lo/rx", b"1.0 KiB/s"),
        (b"net/lo/tx", b"0.5 KiB/s"),
    ]


def test_process_names_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    stat = b"7 (a) b (\xff) S 1 7 7 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0\n"
    (tmp_path / "7/stat").write_bytes(stat)
    (tmp_path / "8").mkdir()  # ended while we looked
    (tmp_path / "self").mkdir()
    assert list(process_ticks(tmp_path)) == [(7, 300, b"a) b (\xff")]


@pytest.mark.parametrize("source", [machine, processes])
def test_this_host_can_be_read(source: Callable[[bytes], Iterator[list[Message]]]) -> None:
    rounds = source(host_name())
    for messages in (next(rounds), next(rounds)):
        assert all(key.startswith(b"host/" + host_name() + b"/") for key, _ in messages)

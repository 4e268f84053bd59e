"""Packets that break the protocol: their sender is disconnected, and no other client is affected.

A sender with notices on can read the reason in the last packet before the end of the connection
(PROTOCOL, "Transport" and "Notices").
"""

import os

import pytest

from tests.support.bus import Bus
from tests.support.processes import clients_on_each, descriptors_at_rest, wait_for_descriptors
from tests.support.raw_client import RawClient

BAD = {
    "empty": (b"", b"empty-packet"),
    "unknown word": (b"HELLO world\0", b"unknown-word"),
    "lower case": (b"msg key\0payload", b"unknown-word"),
    "lower case sub": (b"sub key", b"unknown-word"),
    "space in front": (b" SUB key", b"unknown-word"),
    "SUB without space": (b"SUB", b"unknown-word"),
    "SUB with a tab": (b"SUB\tkey", b"unknown-word"),
    "UNSUB without space": (b"UNSUB", b"unknown-word"),
    "MSG without space": (b"MSG\0payload", b"unknown-word"),
    "MSG runs into its key": (b"MSGkey\0payload", b"unknown-word"),
    "CMSG without space": (b"CMSG", b"unknown-word"),
    "MSG without key and NUL": (b"MSG ", b"no-nul"),
    "MSG without NUL": (b"MSG key", b"no-nul"),
    "only a NUL": (b"\0", b"unknown-word"),
    "noise": (bytes(range(256)) * 16, b"unknown-word"),
    "large noise": (b"\xff" * 300_000, b"unknown-word"),
    "long key": (b"MSG " + b"k" * 4_097 + b"\0", b"key-too-long"),
    "endless key": (b"MSG " + b"k" * 300_000 + b"\0", b"key-too-long"),
    "deep key": (b"MSG " + b"k/" * 128 + b"\0", b"key-too-deep"),
    "long pattern": (b"SUB " + b"p" * 4_097, b"pattern-too-long"),
    "deep pattern": (b"SUB " + b"p/" * 128, b"pattern-too-deep"),
    "long pattern to unsubscribe": (b"UNSUB " + b"p" * 4_097, b"pattern-too-long"),
    "deep pattern to unsubscribe": (b"UNSUB " + b"p/" * 128, b"pattern-too-deep"),
}
"""What is sent, and the code in the notice."""


@pytest.mark.parametrize("notices", [True, False], ids=["notices", "no notices"])
def test_every_kind_of_bad_packet_ends_only_its_sender_s_connection(
    bus: Bus, notices: bool
) -> None:
    """Packets before it are served, packets after it are not; the end is an orderly one."""
    with clients_on_each(bus, 2) as ((same,), (other,)):
        for bystander in (same, other):
            bystander.sub(b"")
            bystander.whoami()
        for name, (packet, code) in BAD.items():
            with bus.connect() as sender:
                if notices:
                    sender.control(b"!/notices/on")
                sender.sub(b"before")
                sender.pub(b"before", name.encode())
                send_all_that_goes(sender, [packet, *[b"MSG behind\0"] * 20])
                packets = sender.receive_until_closed()
            before = b"MSG before\0" + name.encode()
            if notices:
                assert packets.pop().startswith(b"CMSG !/error\0" + code + b" "), name
            assert packets == [before], name
            same.pub(b"meanwhile", b"")
            expected = [before, b"MSG meanwhile\0"]
            assert [same.receive(), same.receive()] == expected, name
            assert [other.receive(), other.receive()] == expected, name
        assert same.sync() == other.sync() == []


def send_all_that_goes(client: RawClient, packets: list[bytes]) -> None:
    """Send on until the bus has closed the connection."""
    for packet in packets:
        try:
            client.send(packet)
        except (BrokenPipeError, ConnectionResetError):
            return


def test_the_largest_keys_and_patterns_are_accepted(bus: Bus) -> None:
    with bus.connect() as client:
        client.control(b"!/notices/on")
        for key in (b"k" * 4_096, b"/".join([b"k"] * 128), b"k/" * 127, b"", b"\n", b"\xff"):
            client.sub(key)
            client.pub(key, b"payload")
            assert client.receive() == b"MSG " + key + b"\0payload"
            client.unsub(key)
        assert client.sync() == []


def test_a_thousand_offenders_do_not_flood_the_log(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((same,), (other,)):
        before = descriptors_at_rest(bus)
        for number in range(1_000):
            with bus.connect() as offender:
                offender.send(b"nonsense %d" % number)
            if number % 100 == 0:
                same.whoami()
                other.whoami()
        with bus.connect() as last:  # reads to the end, so that all are served by then
            last.send(b"nonsense")
            assert last.receive() == b""
        wait_for_descriptors(bus, before)
        lines = bus.stderr_text().splitlines()
        assert 1 <= len(lines) <= 10, lines
        assert all(len(line) < 300 for line in lines)


def test_an_empty_packet_is_not_taken_for_the_end(bus: Bus) -> None:
    """The kernel shows both alike. What was sent before it counts."""
    with clients_on_each(bus, 2) as ((sender,), (other,)):
        other.sub(b"")
        other.whoami()
        sender.control(b"!/notices/on")
        for number in range(100):
            sender.pub(b"key", b"%d" % number)
        sender.send(b"")
        (last,) = sender.receive_until_closed()
        assert last.startswith(b"CMSG !/error\0empty-packet ")
        assert other.sync() == [b"MSG key\0%d" % number for number in range(100)]


# -- reserved keys -------------------------------------------------------------------------------
RESERVED = [b"!", b"!/x", b"!/cre", b"a/!", b"a/!/b", b"a/!/", b"!/notices/on", b"!//", b"*/!"]
NOT_RESERVED = [b"!x", b"x!", b"a/!x/b", b"a/x!", b"!!", b"a/!!/", b"x!/y"]
PATTERNS = [b"", b"*", b"*/", b"!*", b"!*/", b"/", b"a/", b"a/*", b"a/*/", b"a/!*/", b"*/*", b"a*/"]


def test_a_reserved_key_is_refused_and_its_sender_stays(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((sender,), (other,)):
        sender.control(b"!/notices/on")
        for client in (sender, other):
            for pattern in PATTERNS:
                client.sub(pattern)
            client.whoami()
        for key in RESERVED:
            for packet in (b"MSG %b\0x" % key, b"SUB " + key, b"UNSUB " + key):
                sender.send(packet)
                (notice,) = sender.sync()
                assert notice.startswith(b"CMSG !/error\0reserved "), packet
        for key in NOT_RESERVED:
            sender.pub(key, b"")
            assert sender.receive() == b"MSG %b\0" % key
        assert other.sync() == [b"MSG %b\0" % key for key in NOT_RESERVED]


def test_without_notices_a_refusal_is_silent(bus: Bus) -> None:
    with bus.connect() as client:
        for key in RESERVED:
            client.pub(key, b"")
            client.sub(key)
            client.unsub(key)
        assert client.sync() == []


def test_packets_around_a_refused_one_are_served(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((sender,), (other,)):
        other.sub(b"")
        other.whoami()
        for number in range(200):
            sender.pub(b"key", b"%d" % number)
            sender.pub(b"!/key", b"%d" % number)
        sender.whoami()
        assert other.sync() == [b"MSG key\0%d" % number for number in range(200)]


# -- control messages ----------------------------------------------------------------------------
def test_unknown_control_keys_are_ignored_and_none_is_forwarded(bus: Bus) -> None:
    with clients_on_each(bus, 2) as ((sender,), (other,)):
        sender.control(b"!/notices/on")
        for client in (sender, other):
            client.sub(b"")
            client.whoami()
        for key in (b"", b"key", b"!/unknown", b"echo", b"echo/", b"echo/ON", b"!/lost", b"MSG"):
            sender.send(b"CMSG " + key)
            sender.send(b"CMSG " + key + b"\0payload")
        assert sender.sync() == other.sync() == []


def test_whoami_returns_the_kernel_s_ids(bus: Bus) -> None:
    with bus.connect() as client:
        assert client.whoami() == b"!/cred/%d/%d/%d" % (os.getegid(), os.geteuid(), os.getpid())
        client.send(b"CMSG !/cred/whoami\0any payload")
        assert client.receive().startswith(b"CMSG !/cred/whoami\0!/cred/")

"""Hostile clients of the local bus and of NATS: the bridge goes on, and believes none of them."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path

from sbus.bridge.exchange import ORIGINS_MAX
from tests.bridge.exporting_pair import exporting_pair
from tests.bridge.test_live import joined
from tests.support.accounts import Account
from tests.support.bridges import needs_nats, send, wait_until
from tests.support.users import STRANGER, directory_for_everybody, effective_user, needs_root

pytestmark = needs_nats

NOTE = {
    "key": "lamps/1",
    "origin": "c",
    "epoch": "ab",
    "number": 1,
    "host": "h",
    "uid": 0,
    "program": "p",
}


BAD_NOTES = [
    b'{"a":' * 10_000,
    json.dumps(NOTE | {"number": -1}).encode(),
    json.dumps(NOTE | {"origin": "c x"}).encode(),
]


def test_a_note_that_no_bridge_writes_is_dropped_with_its_message(tmp_path: Path) -> None:
    with joined(tmp_path) as pair, pair.b.connect() as there, pair.a.connect() as here:
        send(there, b"SUB lamps/")
        with pair.a.connect() as liar:
            liar.send(b"CMSG !/join\0bridge:liar")
            assert liar.receive() == b"CMSG !/join\0bridge:liar"
            for note in BAD_NOTES:
                send(liar, b"MSG bridge/from/lamps\0" + note, b"MSG lamps/1\0forged")
                send(here, b"MSG lamps/2\0true")
                assert there.receive() == b"MSG lamps/2\0true"
        assert pair.bridge_a.status()["origins"][0]["origin"] == "b"


@needs_root
def test_the_notes_of_other_users_are_not_believed() -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(directory_for_everybody())
        pair = stack.enter_context(joined(directory))
        (directory / "a").chmod(0o711)
        Path(pair.a.address).chmod(0o666)
        here, there = (stack.enter_context(bus.connect()) for bus in (pair.a, pair.b))
        send(here, b"SUB lamps/", b"CMSG echo/off")
        with effective_user(STRANGER):
            liar = stack.enter_context(pair.a.connect())
        liar.send(b"CMSG !/join\0bridge")
        assert liar.receive() == b"CMSG !/join\0bridge"
        note = json.dumps(NOTE | {"origin": "b", "number": 2**40}).encode()
        send(liar, b"MSG bridge/from/lamps\0" + note, b"MSG lamps/1\0forged")
        assert here.receive() == b"MSG lamps/1\0forged"
        send(there, b"SUB lamps/", b"CMSG echo/off", b"MSG lamps/1\0true")
        assert here.receive() == b"MSG lamps/1\0true"
        send(here, b"MSG lamps/2\0too")
        assert there.receive() == b"MSG lamps/2\0too"


NOT_UTF8 = [
    (b"lamps.3", b"NATS/1.0 \xff\r\n\r\n"),
    (b"lamps.3", b"NATS/1.0 503 \xff\r\n\r\n"),
    (b"lamps.3", b"NATS/1.0\r\nSbus: \xff\r\n\r\n"),
    (b"\xff", b"NATS/1.0\r\nSbus: 1 ab 1 x = = =\r\n\r\n"),
]
"""Tokens of a subject, and headers."""


def publish_raw(port: int, below: bytes) -> None:
    """Publish these below a subject, as a client of NATS that does not care."""
    packets = [
        b"HPUB %b.%b %d %d\r\n%b\r\n" % (below, tokens, len(header), len(header), header)
        for tokens, header in NOT_UTF8
    ]
    with socket.create_connection(("127.0.0.1", port)) as sock:
        connect = b'CONNECT {"headers": true, "verbose": false}\r\n'
        sock.sendall(connect + b"".join(packets) + b"PING\r\n")
        answer = b""
        while not answer.endswith(b"PONG\r\n"):
            answer += sock.recv(4_096)
        assert b"-ERR" not in answer


def test_messages_that_are_not_utf8_do_not_end_the_connection(tmp_path: Path) -> None:
    with joined(tmp_path) as pair, pair.b.connect() as there, pair.a.connect() as here:
        send(there, b"SUB lamps/")
        publish_raw(pair.server.port, b"sbus.m.lamps.x")
        send(here, b"MSG lamps/2\0true")
        assert there.receive() == b"MSG lamps/2\0true"
        (link,) = pair.bridge_b.status()["links"]
        assert (link["bad"], link["sessions"]) == (len(NOT_UTF8), 1)


def test_messages_that_are_not_utf8_do_not_hold_up_a_stream(tmp_path: Path) -> None:
    with exporting_pair(tmp_path) as scene:
        account = Account(scene.buses["b"].address)
        publish_raw(scene.server.port, b"sbus.d.all.x.all")
        scene.publish(1, 20)
        account.read_until({"a": 20})
        (link,) = scene.bridges["b"].status()["links"]
        assert link["sessions"] == 1
        account.bus.close()


def test_the_status_stays_readable_whatever_origins_are_invented(tmp_path: Path) -> None:
    with joined(tmp_path) as pair:
        header = b"NATS/1.0\r\nSbus: 1 ab 1 x = = =\r\n\r\n"
        beats = [
            b"HPUB sbus.m.lamps.%b %d %d\r\n%b\r\n"
            % (b"o%055d" % n, len(header), len(header), header)
            for n in range(5_000)
        ]
        with socket.create_connection(("127.0.0.1", pair.server.port)) as sock:
            sock.sendall(b'CONNECT {"headers": true, "verbose": false}\r\n' + b"".join(beats))
            wait_until(lambda: pair.bridge_a.status()["origins_left_out"] == ORIGINS_MAX - 1_000)
        assert len(pair.bridge_a.status()["origins"]) == 1_000

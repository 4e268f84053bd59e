"""dbus-broker on a socket of its own: `python -m sbus.bench.peers.dbus_controller PATH`.

dbus-broker does not listen by itself. Its controller, on real systems `dbus-broker-launch`, which
needs systemd, gives it a socket and a policy through a D-Bus connection, with the method
`org.bus1.DBus.Broker.AddListener`. This is the least that a controller can be: the policy allows
everything, and when the socket listens it waits for the end.
"""

import os
import signal
import socket
import struct
import subprocess
import sys

from sbus.bench import BenchmarkFailed

QUOTAS = {"bytes": 1_000_000_000, "fds": 50_000, "matches": 50_000, "objects": 100_000}
"""Per user; as generous as dbus's own session.conf."""
MACHINE_ID = "0" * 31 + "1"
REPLY_SECONDS_MAX = 10.0
METHOD_RETURN = 2
"""A type of message; the byte after the byte order."""
LISTENER = "/org/bus1/DBus/Listener/0"
RULE = "(btssssuutt)"
BATCH = f"(bta(btbs)a{RULE}a{RULE})"
POLICY = f"(a(u{BATCH})a(buu{BATCH})a(ss)bs)"
PRIORITY = 1
ANY = (True, PRIORITY, "", "", "", "", 0, 0, 0, 2**64 - 1)
ALLOW_ALL = (True, PRIORITY, [(True, PRIORITY, True, "")], [ANY], [ANY])
EVERY_USER = 2**32 - 1

_ALIGNMENT = {"y": 1, "g": 1, "v": 1, "t": 8, "(": 8}
_PACKED = {"y": "<B", "b": "<I", "u": "<I", "h": "<I", "t": "<Q"}


def marshal(out: bytearray, signature: str, values: tuple[object, ...]) -> None:
    """Append values of these types, as the D-Bus specification describes; a variant is a pair of
    its signature and its value."""
    for kind, value in zip(split(signature), values, strict=True):
        pad(out, _ALIGNMENT.get(kind[0], 4))
        if kind[0] in _PACKED:
            out += struct.pack(_PACKED[kind], value)
        elif kind[0] in "osg":
            assert isinstance(value, str)
            out += struct.pack("<B" if kind == "g" else "<I", len(value))
            out += value.encode() + b"\0"
        elif kind[0] == "(":
            assert isinstance(value, tuple)
            marshal(out, kind[1:-1], value)
        elif kind[0] == "v":
            assert isinstance(value, tuple)
            marshal(out, f"g{value[0]}", value)
        else:
            assert isinstance(value, list)
            _marshal_array(out, kind[1:], value)


def _marshal_array(out: bytearray, kind: str, values: list[object]) -> None:
    length_at = len(out)
    out += bytes(4)
    pad(out, _ALIGNMENT.get(kind[0], 4))
    start = len(out)
    for value in values:
        marshal(out, kind, (value,))
    struct.pack_into("<I", out, length_at, len(out) - start)


def pad(out: bytearray, boundary: int) -> None:
    out += bytes(-len(out) % boundary)


def split(signature: str) -> list[str]:
    """The complete types of a signature."""
    types: list[str] = []
    depth, start = 0, 0
    for at, code in enumerate(signature):
        depth += (code == "(") - (code == ")")
        if depth == 0 and code != "a":
            types.append(signature[start : at + 1])
            start = at + 1
    return types


def add_listener() -> bytes:
    """The method call; the descriptor that goes with it is the listening socket."""
    everything: tuple[object, ...] = ([(EVERY_USER, ALLOW_ALL)], [], [], False, "")
    body = bytearray()
    marshal(body, "ohv", (LISTENER, 0, (POLICY, everything)))
    fields: list[object] = [
        (1, ("o", "/org/bus1/DBus/Broker")),
        (2, ("s", "org.bus1.DBus.Broker")),
        (3, ("s", "AddListener")),
        (8, ("g", "ohv")),
        (9, ("u", 1)),
    ]
    message = bytearray()
    marshal(message, "yyyyuua(yv)", (ord("l"), 1, 0, 1, len(body), 1, fields))
    pad(message, 8)
    return bytes(message + body)


def listen_with_broker(path: str) -> subprocess.Popen[bytes]:
    """A dbus-broker that listens at `path`; raises BenchmarkFailed when it refuses to."""
    own, its = socket.socketpair()
    command = ["dbus-broker", "--controller", str(its.fileno()), "--machine-id", MACHINE_ID]
    for name, value in QUOTAS.items():
        command += [f"--max-{name}", str(value)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        broker = subprocess.Popen(command, pass_fds=[its.fileno()])
        its.close()
        own.settimeout(REPLY_SECONDS_MAX)
        own.sendall(b"\0AUTH EXTERNAL %s\r\n" % str(os.getuid()).encode().hex().encode())
        own.sendall(b"NEGOTIATE_UNIX_FD\r\nBEGIN\r\n")
        socket.send_fds(own, [add_listener()], [listener.fileno()])
    _check_reply(own)
    own.detach()  # open for as long as this process lives
    return broker


def _check_reply(controller: socket.socket) -> None:
    """Read until the message that follows the authentication, which begins with its type."""
    output = b""
    while len(message := output.partition(b"AGREE_UNIX_FD\r\n")[2]) < 2:
        received = controller.recv(4096)
        if not received:
            raise BenchmarkFailed(f"dbus-broker ended: {output!r}")
        output += received
    if message[1] != METHOD_RETURN:
        raise BenchmarkFailed(f"dbus-broker refuses to listen: {message!r}")


if __name__ == "__main__":
    running = listen_with_broker(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: running.terminate())
    sys.exit(running.wait())

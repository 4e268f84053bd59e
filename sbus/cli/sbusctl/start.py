"""The start of `sbusctl`, and a short way for `sbusctl pub KEY PAYLOAD`.

Scripts publish single messages often, and importing click and the client library takes twice as
long as everything else. The short way needs neither. The table of verbs handles any other command
line, an address that is no path, and a bus that cannot be connected to.
"""

import os
import socket
import sys
from typing import NoReturn

from sbus.cli.terminal.error_output import report_error
from sbus.unix.default_address import default_address
from sbus.unix.standard_streams import hold_standard_numbers

NOTICES_ON = b"CMSG !/notices/on"
WHOAMI = b"CMSG !/cred/whoami"
ERROR = b"CMSG !/error\0"
"""As in `sbus.protocol.controls`, which takes longer to import."""
SHORT_BYTES_MAX = 32_768
"""Every socket has room for such a packet."""
SHORT_KEY_BYTES_MAX = 127
"""Such a key has neither too many bytes nor too many segments, which the client library checks."""


def main() -> NoReturn:
    """Run the command and exit."""
    hold_standard_numbers()
    packet = _plain_message(sys.argv[1:])
    bus = None if packet is None else _connect(default_address())
    if packet is None or bus is None:
        from sbus.cli.sbusctl.command import main as run_verb

        run_verb()
    try:
        sys.exit(_publish(bus, packet))
    except KeyboardInterrupt:
        sys.exit(130)


def _plain_message(words: list[str]) -> bytes | None:
    """The message, if this is `pub KEY PAYLOAD` without an option."""
    if len(words) != 3 or words[0] != "pub" or any(word.startswith("-") for word in words):
        return None
    key = os.fsencode(words[1])
    packet = b"MSG %b\0%b" % (key, os.fsencode(words[2]))
    is_short = len(key) <= SHORT_KEY_BYTES_MAX and len(packet) <= SHORT_BYTES_MAX
    return packet if is_short else None


def _connect(address: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if not address.startswith("/dev/"):
            sock.connect(address)
            return sock
    except OSError:
        pass
    sock.close()
    return None


def _publish(bus: socket.socket, packet: bytes) -> int:
    """Publish, and return the exit status when the bus has processed the message."""
    try:
        for request in (NOTICES_ON, packet, WHOAMI):
            bus.send(request)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the reason may be there to read
    reason = ""
    while not (reply := _receive(bus)).startswith(WHOAMI):
        if not reply:
            why = f": {reason}" if reason else _dot_advice()
            reason = f"the bus closed the connection{why}"
            break
        if reply.startswith(ERROR):
            code, _, text = reply.removeprefix(ERROR).decode(errors="replace").partition(" ")
            reason = f"{text} ({code})"
    if reason:
        report_error(reason, command="sbusctl")
    return 1 if reason else 0


def _dot_advice() -> str:
    from sbus.client.inbox import DOT_ADVICE

    return DOT_ADVICE


def _receive(bus: socket.socket) -> bytes:
    try:
        return bus.recv(SHORT_BYTES_MAX)
    except ConnectionResetError:
        # Reported once, before the packets that are still there and the end.
        return bus.recv(SHORT_BYTES_MAX)

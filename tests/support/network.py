"""Hosts of one machine: network namespaces whose only links lead to one virtual switch."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Network:
    """Needs root; the namespaces have the addresses 10.231.N.1, 10.231.N.2, …, where N differs for
    most processes."""

    def __init__(self, names: Sequence[str], stack: ExitStack) -> None:
        self._names = names
        self._switch = f"sb{os.getpid()}"
        self._net = f"10.231.{os.getpid() % 256}"
        self._make(stack, ["link"], self._switch, "type", "bridge")
        _ip("addr", "add", f"{self._net}.254/24", "dev", self._switch)
        _ip("link", "set", self._switch, "up")
        for name in names:
            self._add(name, stack)

    def _make(self, stack: ExitStack, kind: list[str], name: str, *words: str) -> None:
        _ip(*kind, "add", name, *words)
        stack.callback(_ip, *kind, "del", name)

    def _add(self, name: str, stack: ExitStack) -> None:
        space, port = self._namespace(name), self._port(name)
        self._make(stack, ["netns"], space)
        self._make(stack, ["link"], port, "type", "veth", "peer", "name", "up0", "netns", space)
        _ip("link", "set", port, "master", self._switch, "up")
        _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "up0")
        for device in ("lo", "up0"):
            _ip("-n", space, "link", "set", device, "up")

    def address(self, name: str) -> str:
        return f"{self._net}.{1 + self._names.index(name)}"

    def command(self, name: str) -> list[str]:
        """What executes the command behind it on this host."""
        return ["ip", "netns", "exec", self._namespace(name)]

    def cut(self, name: str) -> None:
        """Cut the link of this host."""
        _ip("link", "set", self._port(name), "down")

    def mend(self, name: str) -> None:
        _ip("link", "set", self._port(name), "up")

    def _namespace(self, name: str) -> str:
        return f"{self._switch}-{name}"

    def _port(self, name: str) -> str:
        return f"{self._switch}{name}"


@contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    with ExitStack() as stack:
        yield Network(names, stack)

"""The verbs of a command, each imported when somebody wants it.

A verb's module holds a click command of the verb's name. Whoever runs one verb does not wait for
the others; whoever lists them all (`--help`, completion, man pages) loads them all. This module
does not know what any of them does.
"""

import importlib
from collections.abc import Iterator, MutableMapping

import click


class LazyVerbs(MutableMapping[str, click.Command]):
    """Commands by name, out of `modules`, the name of a module for each."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._verbs: dict[str, str | click.Command] = dict(modules)

    def __getitem__(self, name: str) -> click.Command:
        found = self._verbs[name]
        if isinstance(found, str):
            command = getattr(importlib.import_module(found), name)
            assert isinstance(command, click.Command)
            self._verbs[name] = found = command
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._verbs[name] = command

    def __delitem__(self, name: str) -> None:
        del self._verbs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)

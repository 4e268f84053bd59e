"""`sbusctl --host user@host …`: the same command on another host, over ssh."""

import os
import shlex
from collections.abc import Container, Iterator
from typing import NoReturn

from sbus.errors import ConfigurationError

OPTION = "--host"


def run_there(host: str, words: list[str], with_values: Container[str]) -> NoReturn:
    """Run `sbusctl` with these arguments on that host, in place of this process. The word behind
    each of the options `with_values` belongs to it. Raises ConfigurationError."""
    command = command_there(host, words, with_values)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise ConfigurationError(f"cannot run {command[0]}: {error.strerror}") from error


def command_there(host: str, words: list[str], with_values: Container[str]) -> list[str]:
    """The command of ssh. Raises ConfigurationError for a host that is an option."""
    if not host or host.startswith("-"):
        raise ConfigurationError(f"{OPTION} {host!r} is no host: write user@host or host")
    return ["ssh", "--", host, shlex.join(["sbusctl", *_without_host(words, with_values)])]


def _without_host(words: list[str], with_values: Container[str]) -> Iterator[str]:
    """The arguments without this option of those before the verb."""
    left = iter(words)
    for word in left:
        if word == OPTION:
            next(left)
        elif not word.startswith(f"{OPTION}="):
            yield word
            if word in with_values:
                yield next(left)
            elif not word.startswith("-"):
                yield from left

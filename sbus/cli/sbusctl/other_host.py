"""`sbusctl --host user@host …`: the same command on another host, over ssh."""

import os
import shlex
from typing import NoReturn

from sbus.errors import ConfigurationError

OPTION = "--host"


def run_there(host: str, words: list[str]) -> NoReturn:
    """Run `sbusctl` with these arguments on that host, in place of this process. Raises
    ConfigurationError."""
    command = command_there(host, words)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise ConfigurationError(f"cannot run {command[0]}: {error.strerror}") from error


def command_there(host: str, words: list[str]) -> list[str]:
    """The command of ssh. Raises ConfigurationError for a host that is an option."""
    if not host or host.startswith("-"):
        raise ConfigurationError(f"{OPTION} {host!r} is no host: write user@host or host")
    return ["ssh", "--", host, shlex.join(["sbusctl", *_without_host(words)])]


def _without_host(words: list[str]) -> list[str]:
    """The arguments without this option, of which the first counts."""
    for at, word in enumerate(words):
        if word == OPTION:
            return words[:at] + words[at + 2 :]
        if word.startswith(f"{OPTION}="):
            return words[:at] + words[at + 1 :]
    return words

"""Reading TOML files, with errors for people: line and column, and what is wrong."""

import os
import stat
import tomllib
from typing import Any, Final

from sbus.errors import ConfigurationError
from sbus.validation import printable

FILE_BYTES_MAX: Final = 1024 * 1024
"""Far more than any configuration needs; what is larger is another kind of file."""


def read_regular(path: str) -> bytes:
    """The bytes of a regular file. Raises OSError, ConfigurationError."""
    # Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigurationError("not a regular file; name a TOML file")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigurationError(f"it has more than {FILE_BYTES_MAX} bytes; is it the right file?")
    return data


def parse_toml(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(
            f"line {line} is not UTF-8: it holds the byte 0x{data[error.start]:02x}"
        ) from error
    try:
        # With a newline at its end, a mistake in the last line has a number as well.
        return tomllib.loads(f"{text}\n")
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"not valid TOML: {printable(str(error))}") from error
    except RecursionError as error:
        raise ConfigurationError("arrays or tables are nested too deeply") from error
    except ValueError as error:
        raise ConfigurationError("a number has too many digits") from error

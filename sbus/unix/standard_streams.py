"""File descriptors 0, 1 and 2, whose numbers must never mean anything else.

Letting go of a standard stream means putting /dev/null in its place: a number that is merely
closed goes to the next file that is opened, and then whatever is printed goes to a client. This
module does not know when which stream is let go.
"""

import os

INPUT, OUTPUT, ERRORS = 0, 1, 2


def hold_standard_numbers() -> None:
    """Where a standard stream was not handed down at all, open /dev/null under its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= ERRORS:
        os.set_inheritable(number, True)
    os.close(number)


def release_input_and_output() -> None:
    """Let go of standard input and output, as whoever started this process waits for."""
    _release(INPUT, OUTPUT)


def release_errors_of_terminal() -> None:
    """Let go of standard error if it is a terminal, which will not be there for long."""
    if os.isatty(ERRORS):
        _release(ERRORS)


def _release(*numbers: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)

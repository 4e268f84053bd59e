"""The standard streams: file descriptors 0, 1 and 2, which must never belong to another file.

A stream is released by putting /dev/null in its place: a number that is merely closed goes to the
next file that is opened, and then a client might receive what is printed.
"""

import os

INPUT, OUTPUT, ERRORS = 0, 1, 2


def hold_standard_numbers() -> None:
    """Open /dev/null for each standard stream that this process did not inherit."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= ERRORS:
        os.set_inheritable(number, True)
    os.close(number)


def release_input_and_output() -> None:
    """Release standard input and output; the parent waits for the end of the output."""
    release(INPUT, OUTPUT)


def release_errors_of_terminal() -> None:
    """Release standard error if it is a terminal, which will not exist for long."""
    if os.isatty(ERRORS):
        release(ERRORS)


def release(*numbers: int) -> None:
    """Put /dev/null in the place of these streams."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)

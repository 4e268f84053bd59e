"""How a command ends.

| it | on standard error | exit status |
|---|---|---|
| succeeds | nothing | 0 |
| fails: the bus, a file or the system refuses | `COMMAND: reason`, one line | 1 |
| lacks a package that an extra installs | likewise | 69, for which units start nothing again |
| is used wrongly | `COMMAND: reason (see COMMAND --help)`, one line | 2 |
| is interrupted with Ctrl-C | nothing | 130, as for a process that SIGINT ended |
| loses the reader of its output | nothing | 141, as for one that SIGPIPE ended |
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click

from sbus.cli.terminal.error_output import report_error
from sbus.errors import PackageMissing, SbusError
from sbus.unix.standard_streams import OUTPUT, hold_standard_numbers, release

FAILED = 1
INTERRUPTED = 130
OUTPUT_CLOSED = 141


class CommandGroup(click.Group):
    """Verbs that end like this; its name is the one that errors begin with."""

    other_names: Mapping[str, str] = {}
    """Verbs by the names that they have elsewhere, which are suggested for these."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that the first argument names. An error suggests one."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            from sbus.validation import suggest

            known = self.other_names.get(name, name)
            ctx.fail(f"there is no verb {name!r}{suggest(known, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb, and exit before click handles its errors in another way.

        The output is released before, so that flushing buffers to it causes no further error.
        """
        assert self.name is not None
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            release(OUTPUT)
            raise SystemExit(INTERRUPTED) from None
        except BrokenPipeError:
            release(OUTPUT)
            raise SystemExit(OUTPUT_CLOSED) from None
        except SbusError as error:
            report_error(str(error), command=self.name)
            raise SystemExit(
                os.EX_UNAVAILABLE if isinstance(error, PackageMissing) else FAILED
            ) from None
        except OSError as error:
            report_error(_describe(error), command=self.name)
            release(OUTPUT)
            raise SystemExit(FAILED) from None


def run_command(group: CommandGroup, prog_name: str) -> NoReturn:
    """Run the command that `sys.argv` asks for, and exit."""
    hold_standard_numbers()
    try:
        status = group.main(prog_name=prog_name, standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else prog_name
        report_error(f"{error.format_message()} (see {path} --help)", command=str(group.name))
        status = error.exit_code
    sys.exit(status)


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason

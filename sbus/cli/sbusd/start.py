"""The lifecycle of a bus, from its sockets to its end.

The command line and its file have been checked before. First comes the background, while this
process is still small, so that everything else belongs to the process that stays. Then the pidfile,
which one bus has at a time; the sockets, because clients wait for their address; and only then the
broker, whose imports take longer than everything else together. Before it serves, this process
gives up all rights that it does not need. Everything that was made is removed on the way out,
whichever way that is.
"""

import gc
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from sbus.cli.sbusd.daemon import Launcher, StopRequest, go_to_background, leave_surroundings
from sbus.cli.sbusd.pidfile import Pidfile
from sbus.cli.sbusd.plan import Plan
from sbus.cli.sbusd.sockets import Sockets, open_sockets, passed_sockets
from sbus.cli.terminal.error_output import report_error
from sbus.errors import ConfigurationError, SbusError
from sbus.unix.activation import PassedSockets
from sbus.unix.address import RandomAbstractAddress
from sbus.unix.notify import Notifier
from sbus.unix.open_files import raise_open_files_limit
from sbus.unix.owned_path import OwnedPath
from sbus.unix.standard_streams import OUTPUT, hold_standard_numbers, release_input_and_output
from sbus.unix.users import Identity

if TYPE_CHECKING:
    from sbus.broker.config.resolution import Configuration

_DESCRIPTORS_LEAST = 32
_DESCRIPTORS_PER_WORKER = 8
"""Its link, pidfd and eventfd, in two processes, and some on their way."""


def run(plan: Plan) -> None:
    """Run a bus until it is told to stop. Raises SbusError, with nothing left behind."""
    hold_standard_numbers()
    if not os.path.exists("/proc/self/fd"):
        raise ConfigurationError("there is no /proc here, which the bus needs: see proc(5)")
    notifier = Notifier.of_environment(report_error)
    stop = StopRequest()
    launcher = None
    try:
        passed = passed_sockets(plan.addresses)
        if not plan.options["foreground"]:
            launcher = go_to_background(stop)
        _Lifecycle(plan, notifier, stop, launcher).run(passed)
    except SbusError as error:
        notifier.status(str(error))
        if launcher is not None and launcher.report_failure(str(error)):
            # The launcher prints it, and this process may share its standard error.
            raise SystemExit(1) from error
        raise


class _Lifecycle:
    def __init__(
        self, plan: Plan, notifier: Notifier, stop: StopRequest, launcher: Launcher | None
    ) -> None:
        self._plan = plan
        self._notifier = notifier
        self._stop = stop
        self._launcher = launcher
        """None in the foreground."""
        self._pidfile: Pidfile | None = None
        self._new_identity: Identity | None = None

    def run(self, passed: PassedSockets | None) -> None:
        plan = self._plan
        with ExitStack() as stack:
            if self._launcher is not None and plan.options["pidfile"] != os.devnull:
                self._pidfile = Pidfile(os.path.abspath(plan.options["pidfile"]))
                stack.callback(self._pidfile.remove)
            sockets = open_sockets(plan.addresses, passed, plan.options)
            stack.callback(sockets.close)
            stack.callback(self._stop.ignore_further)
            if isinstance(plan.addresses.bus, RandomAbstractAddress):
                _print_address(sockets.bus.printable_address)
            from sbus.cli.sbusd.rights import new_identity

            self._new_identity = new_identity(plan.run_as)
            if self._launcher is None:
                self._serve(sockets, release_input_and_output)
            else:
                leave_surroundings()
                self._serve(sockets, partial(self._report_ready, self._launcher))

    def _report_ready(self, launcher: Launcher) -> None:
        if not launcher.report_ready():
            self._stop.request()

    def _serve(self, sockets: Sockets, on_ready: Callable[[], None]) -> None:
        """Run the broker. It gets a signal that came before it had handlers once it is ready."""
        # What is imported stays: no collection need look at it, now or later. To look is to write,
        # and a page that one of the bus's processes writes to is copied for it.
        gc.disable()
        from sbus.broker.bus import run_bus
        from sbus.broker.front_process import Endpoints
        from sbus.cli.sbusd.rights import reduced_rights

        gc.freeze()
        gc.enable()

        _check_open_files(raise_open_files_limit(), self._plan.options["workers"])
        plan, is_abstract = self._plan, sockets.bus.is_abstract

        def reread() -> "Configuration":
            return plan.read_again().configuration(is_abstract=is_abstract)

        def ready_then_stoppable() -> None:
            on_ready()
            address = sockets.bus.bound_address.format()
            self._notifier.ready(f"{plan.options['workers']} workers serve at {address}")
            self._stop.pass_on()

        configuration = plan.configuration(is_abstract=is_abstract)
        identity = self._new_identity
        if self._stop.is_requested:
            return
        with reduced_rights(identity, [] if identity is None else self._take_files(sockets)):
            try:
                run_bus(
                    configuration,
                    Endpoints(
                        listener=sockets.bus.socket,
                        admin_listener=None if sockets.admin is None else sockets.admin.socket,
                        admin_gids=plan.addresses.admin_gids,
                        is_inherited=sockets.bus.is_inherited,
                    ),
                    reread=reread,
                    on_ready=ready_then_stoppable,
                    notifier=self._notifier,
                )
            finally:
                self._stop.ignore_further()

    def _take_files(self, sockets: Sockets) -> list[OwnedPath]:
        """The files of the bus, which the caller removes from now on."""
        pidfiles = [] if self._pidfile is None else self._pidfile.take_files()
        return sockets.take_files() + pidfiles


def _check_open_files(limit: int, workers: int) -> None:
    """Raise ConfigurationError if the bus could not even start all workers."""
    least = _DESCRIPTORS_LEAST + _DESCRIPTORS_PER_WORKER * workers
    if limit < least:
        raise ConfigurationError(
            f"{limit} open files are too few for {workers} workers, which need {least} (ulimit -n)"
        )


def _print_address(address: str) -> None:
    try:
        os.write(OUTPUT, f"{address}\n".encode())
    except OSError as error:
        raise ConfigurationError(f"cannot print the address: {error.strerror}") from error

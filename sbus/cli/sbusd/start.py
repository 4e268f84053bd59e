"""The lifecycle of a bus, from its sockets to its end.

The command line and the configuration file have been checked before. Then:

1. The process goes to the background while it is still small, so that the process that stays makes
   everything else.
2. It takes the pidfile, which only one bus has at a time.
3. It makes the sockets, because clients wait for their address.
4. It imports the broker, which takes longer than everything else together.
5. It gives up all rights that it does not need, and serves.

However the bus ends, its sockets and its pidfile are removed. A bus that takes the place of another
one makes none of these: it gets them, and owns them once the other one has given up its clients.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from sbus.bus_options import PREDECESSOR_VARIABLE
from sbus.cli.sbusd.daemon import Launcher, StopRequest, go_to_background, leave_surroundings
from sbus.cli.sbusd.pidfile import Pidfile
from sbus.cli.sbusd.plan import Plan
from sbus.cli.sbusd.sockets import Sockets, open_sockets, passed_sockets
from sbus.cli.terminal.error_output import report_error
from sbus.errors import ConfigurationError, SbusError
from sbus.unix.activation import PassedSockets, take_stored_descriptors
from sbus.unix.address import RandomAbstractAddress
from sbus.unix.bus_files import BusFiles
from sbus.unix.descriptor_store import StoredDescriptors
from sbus.unix.notify import Notifier
from sbus.unix.open_files import raise_open_files_limit
from sbus.unix.standard_streams import (
    OUTPUT,
    hold_standard_numbers,
    release_input_and_output,
    reopen_errors,
)
from sbus.unix.users import Identity

if TYPE_CHECKING:
    from sbus.broker.front_process import Endpoints
    from sbus.cli.sbusd.predecessor import Heritage

_DESCRIPTORS_LEAST = 32
_DESCRIPTORS_PER_WORKER = 8
"""Its link, pidfd and eventfd, in two processes, and some on their way."""


def run(plan: Plan, *, take_over: bool = False) -> None:
    """Run a bus until it is told to stop; `take_over`: in the place of one that runs. Raises
    SbusError, with nothing left behind."""
    environment = _environment_of_successor()
    hold_standard_numbers()
    if not os.path.exists("/proc/self/fd"):
        raise ConfigurationError("there is no /proc here, which the bus needs: see proc(5)")
    notifier = Notifier.of_environment(report_error)
    stop = StopRequest()
    launcher = None
    was_started_by_bus = PREDECESSOR_VARIABLE in os.environ
    try:
        stored = take_stored_descriptors()
        passed = passed_sockets(plan.addresses)
        if not (plan.options["foreground"] or was_started_by_bus):
            launcher = go_to_background(stop)
        lifecycle = _Lifecycle(plan, notifier, stop, launcher, environment, stored)
        if take_over or was_started_by_bus:
            lifecycle.take_over(was_started_by_bus=was_started_by_bus)
        else:
            lifecycle.run(passed)
    except SbusError as error:
        notifier.status(str(error))
        if launcher is not None and launcher.report_failure(str(error)):
            # The launcher prints it, and this process may share its standard error.
            raise SystemExit(1) from error
        raise


class _Lifecycle:
    def __init__(
        self,
        plan: Plan,
        notifier: Notifier,
        stop: StopRequest,
        launcher: Launcher | None,
        environment: dict[str, str],
        stored: StoredDescriptors,
    ) -> None:
        self._plan = plan
        self._notifier = notifier
        self._stop = stop
        self._launcher = launcher
        """None where nobody waits for this process to go to the background."""
        self._directory = _working_directory()
        self._environment = environment
        self._stored = stored
        self._files = BusFiles()
        self._heritage: Heritage | None = None

    def run(self, passed: PassedSockets | None) -> None:
        """Open the pidfile and the sockets, and serve."""
        plan = self._plan
        with ExitStack() as stack:
            if self._needs_pidfile():
                pidfile = Pidfile(os.path.abspath(plan.options["pidfile"]))
                self._files = BusFiles([pidfile.owned_path], pidfile.fd)
            stack.callback(self._files.close)
            stack.callback(self._files.remove)
            sockets = open_sockets(plan.addresses, passed, plan.options)
            stack.callback(sockets.close)
            self._files.paths[:0] = sockets.take_files()
            stack.callback(self._files.remove)
            stack.callback(self._stop.ignore_further)
            if isinstance(plan.addresses.bus, RandomAbstractAddress):
                _print_address(sockets.bus.printable_address)
            self._settle_and_serve(sockets)

    def _needs_pidfile(self) -> bool:
        return self._launcher is not None and self._plan.options["pidfile"] != os.devnull

    def take_over(self, *, was_started_by_bus: bool) -> None:
        """Serve with what another bus leaves, which may have started this process."""
        from sbus.cli.sbusd.predecessor import inherit, report_failure

        with ExitStack() as stack:
            heritage = self._heritage = inherit(self._plan.addresses, self._plan.options["dialect"])
            self._files = heritage.files
            if self._needs_pidfile() and self._files.pidfile is None:
                report_error("warning: no pidfile, because the bus that ran here had none")
            if was_started_by_bus:
                self._plan = self._plan.given_by(heritage.owner)
            stack.callback(self._files.close)
            stack.callback(heritage.sockets.close)
            stack.callback(self._files.remove)
            stack.callback(self._stop.ignore_further)
            try:
                self._settle_and_serve(heritage.sockets)
            except SbusError as error:
                report_failure(heritage.link, str(error))
                raise

    def _settle_and_serve(self, sockets: Sockets) -> None:
        from sbus.cli.sbusd.rights import new_identity

        identity = new_identity(self._plan.run_as)
        if self._launcher is not None:
            leave_surroundings()
            self._serve(sockets, identity, partial(self._report_ready, self._launcher))
        elif self._plan.options["foreground"]:
            self._serve(sockets, identity, release_input_and_output)
        else:  # started by a bus in the background
            leave_surroundings()
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._serve(sockets, identity, lambda: None)

    def _report_ready(self, launcher: Launcher) -> None:
        if not launcher.report_ready():
            self._stop.request()

    def _serve(
        self, sockets: Sockets, identity: Identity | None, on_ready: Callable[[], None]
    ) -> None:
        """Run the broker. It gets a signal that came before it had handlers once it is ready."""
        # What is imported stays: no collection need look at it, now or later. To look is to write,
        # and a page that one of the bus's processes writes to is copied for it.
        gc.disable()
        from sbus.broker.bus import run_bus
        from sbus.broker.config.resolution import ConfigurationSource
        from sbus.cli.sbusd.rights import reduced_rights

        gc.freeze()
        gc.enable()

        _check_open_files(raise_open_files_limit(), self._plan.options["workers"])
        plan, is_abstract = self._plan, sockets.bus.is_abstract

        source = ConfigurationSource(
            reread=lambda: plan.read_again().configuration(is_abstract=is_abstract),
            look_up_again=lambda: plan.look_up_names().configuration(is_abstract=is_abstract),
        )

        def ready_then_stoppable() -> None:
            on_ready()
            self._stop.pass_on()

        configuration = plan.configuration(is_abstract=is_abstract)
        if self._stop.is_requested and not self._stored:  # clients of an earlier bus are told
            return
        reopen_errors()
        with reduced_rights(identity, self._files):
            try:
                run_bus(
                    configuration,
                    self._endpoints(sockets),
                    source=source,
                    on_ready=ready_then_stoppable,
                    notifier=self._notifier,
                )
            finally:
                self._stop.ignore_further()

    def _endpoints(self, sockets: Sockets) -> "Endpoints":
        from sbus.broker.front.upgrade import ProgramCommand
        from sbus.broker.front_process import Endpoints, Predecessor

        heritage = self._heritage
        arguments = [sys.executable, *sys.orig_argv[1:]]
        return Endpoints(
            listener=sockets.bus.socket,
            admin_listener=None if sockets.admin is None else sockets.admin.socket,
            admin_gids=self._plan.addresses.admin_gids,
            is_inherited=sockets.bus.is_inherited,
            files=self._files,
            owner=self._plan.command_line.owner,
            command=ProgramCommand(arguments, self._directory, self._environment),
            predecessor=None
            if heritage is None
            else Predecessor(heritage.link, heritage.front_pidfd, self._stop.pass_on),
            stored=self._stored,
        )


def _environment_of_successor() -> dict[str, str]:
    """That of a program which takes the place of this one: without what is for this process only.
    The service manager is the same."""
    own = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", PREDECESSOR_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in own}


def _working_directory() -> str:
    """Where relative paths of the command line begin."""
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "/"


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

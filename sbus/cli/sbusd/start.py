"""The life of one bus, from its address to its end.

The order matters. What can be wrong with the command line is found out before this begins; then
comes the socket, whose address everybody waits for; then the background, while this process is
still small; and only then the broker, whose imports take longer than everything else together.
Everything that was made is removed on the way out, whichever way that is. This module does not
know the command line's syntax, nor what the broker does.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbus.cli.sbusd.admission_options import Admission, admission
from sbus.cli.sbusd.daemon import Pidfile, go_to_background
from sbus.cli.sbusd.sockets import Sockets, open_sockets
from sbus.cli.sbusd.stop_request import StopRequest
from sbus.cli.sbusd.words import Plan
from sbus.cli.terminal.error_output import report_error
from sbus.errors import ConfigurationError, SbusError
from sbus.unix.address import RandomAbstractAddress
from sbus.unix.notify import Notifier
from sbus.unix.open_files import raise_open_files_limit
from sbus.unix.standard_streams import OUTPUT, hold_standard_numbers, release_input_and_output

if TYPE_CHECKING:
    from sbus.broker.config.resolution import Configuration
    from sbus.broker.config.settings import BusSettings


def run(plan: Plan) -> None:
    """Be a bus until it is told to end; SbusError, with nothing left behind, when it cannot be."""
    hold_standard_numbers()
    notifier = Notifier.of_environment(report_error)
    try:
        _run(plan, notifier)
    except SbusError as error:
        notifier.status(str(error))
        raise


def _run(plan: Plan, notifier: Notifier) -> None:
    stop = StopRequest()
    sockets = open_sockets(
        plan.addresses, group=plan.group, others=plan.others, replace=plan.replace
    )
    try:
        if isinstance(plan.addresses.bus, RandomAbstractAddress):
            _print_address(sockets.bus.printable_address)
        if plan.foreground:
            _serve(plan, sockets, notifier, stop, release_input_and_output)
        else:
            _serve_in_background(plan, sockets, notifier, stop)
    finally:
        stop.ignore_further()
        sockets.close()


def _serve_in_background(
    plan: Plan, sockets: Sockets, notifier: Notifier, stop: StopRequest
) -> None:
    launcher = go_to_background(stop)

    def on_ready() -> None:
        if not launcher.report_ready():
            stop.request()

    try:
        _serve_with_pidfile(plan, sockets, notifier, stop, on_ready)
    except SbusError as error:
        if not launcher.report_failure(str(error)):
            raise
        # The launcher prints it, and this process may share its standard error.
        raise SystemExit(1) from error


def _serve_with_pidfile(
    plan: Plan,
    sockets: Sockets,
    notifier: Notifier,
    stop: StopRequest,
    on_ready: Callable[[], None],
) -> None:
    if plan.pidfile is None:
        _serve(plan, sockets, notifier, stop, on_ready)
        return
    pidfile = Pidfile(plan.pidfile)
    try:
        _serve(plan, sockets, notifier, stop, on_ready)
    finally:
        stop.ignore_further()
        pidfile.remove()


def _serve(
    plan: Plan,
    sockets: Sockets,
    notifier: Notifier,
    stop: StopRequest,
    on_ready: Callable[[], None],
) -> None:
    """Run the broker; signals that came before it had handlers reach it when it is ready."""
    from sbus.broker.bus import run_bus

    raise_open_files_limit()
    is_abstract = sockets.bus.is_abstract

    def reread() -> "Configuration":
        if plan.reread is None:
            raise ConfigurationError("this bus was started without a file to read (--config)")
        anew = plan.reread()
        check(anew)
        return _configuration(anew, is_abstract)

    def ready_then_stoppable() -> None:
        on_ready()
        notifier.ready(f"{plan.workers} workers serve at {sockets.bus.bound_address.format()}")
        stop.pass_on()

    if not stop.requested:
        run_bus(
            _configuration(plan, is_abstract),
            sockets.bus.socket,
            reread=reread,
            on_ready=ready_then_stoppable,
            notifier=notifier,
            admin_listener=None if sockets.admin is None else sockets.admin.socket,
            admin_gids=plan.addresses.admin_gids,
        )


def check(plan: Plan) -> None:
    """Raise SbusError where `run` would, as far as that shows without an address."""
    from sbus.broker.bus import check_settings

    check_settings(_settings(plan, Admission(None, frozenset())))


def _configuration(plan: Plan, is_abstract: bool) -> "Configuration":
    from sbus.broker.config.resolution import Configuration

    admitted = admission(plan.uids, is_abstract=is_abstract, group=plan.group, others=plan.others)
    return Configuration(
        settings=_settings(plan, admitted),
        bus=plan.bus,
        user_names={} if plan.resolved is None else plan.resolved.user_names,
        checks_group=is_abstract,
    )


def _settings(plan: Plan, admitted: Admission) -> "BusSettings":
    from sbus.broker.config.settings import BusSettings
    from sbus.limits import Limits
    from sbus.protocol.controls import BacklogOrder, FloodControl, Hard, Soft

    return BusSettings(
        workers=plan.workers,
        dialect=plan.dialect,
        limits=plan.limits or Limits(),
        user_limits={} if plan.resolved is None else plan.resolved.user_limits,
        rules=() if plan.resolved is None else plan.resolved.rules,
        flood_control=FloodControl(
            soft=Soft(plan.soft), hard=Hard(plan.hard), order=BacklogOrder(plan.order)
        ),
        admit_uids=admitted.uids,
        admit_gids=admitted.gids,
        exit_when_empty=plan.exit_when_empty,
        refuse_descriptors=plan.refuse_descriptors,
        log=plan.log,
    )


def _print_address(address: str) -> None:
    try:
        os.write(OUTPUT, f"{address}\n".encode())
    except OSError as error:
        raise ConfigurationError(f"cannot print the address: {error.strerror}") from error

"""The verbs of `sbusctl` about other hosts: bridge, bridges."""

import functools

import click

from sbus.cli.optional_packages import needs_packages
from sbus.cli.sbusctl.shared_options import SelectedBus, json_option, verb
from sbus.unix.default_address import default_address

CONFIG_FILE = "/etc/sbus/bridge.toml"


@verb(
    "sbusctl bridge",
    "sbusctl bridge --config /etc/sbus/bridge.toml --check-config",
)
@click.option(
    "--config",
    "path",
    type=click.Path(readable=False),
    metavar="FILE",
    default=CONFIG_FILE,
    show_default=True,
    help="The channels, and the links that they cross.",
)
@click.option("--check-config", is_flag=True, help="Say what FILE has, or what is wrong, and end.")
def bridge(selected: SelectedBus, path: str, check_config: bool) -> None:
    """Join this bus to those of other hosts, over NATS.

    Channels of the configuration cross; each is a list of patterns. Runs until SIGTERM or Ctrl-C.
    """
    from sbus.bridge.configuration import read_configuration

    plan = read_configuration(path, selected.address or default_address())
    if check_config:
        click.echo(f"{path}: {plan}")
        return
    with needs_packages({"nats": "bridge", "nkeys": "bridge"}):
        import asyncio

        from sbus.bridge.bridge import Bridge
    from sbus.cli.terminal.error_output import report_error
    from sbus.unix.notify import Notifier

    report = functools.partial(report_error, command="sbusctl")
    notifier = Notifier.of_environment(report)
    asyncio.run(Bridge(plan, report, notifier).run())


@verb("sbusctl bridges")
@json_option
def bridges(selected: SelectedBus, as_json: bool) -> None:
    """Show the bridge of this bus: its links, channels, and the buses that it hears.

    The first member named bridge that answers is believed, by its user's id.
    """
    from sbus.cli.sbusctl.admin_requests import show
    from sbus.cli.sbusctl.bridge_request import ask_bridge
    from sbus.cli.views.bridges_view import bridge_lines

    show(ask_bridge(selected), bridge_lines, as_json=as_json)

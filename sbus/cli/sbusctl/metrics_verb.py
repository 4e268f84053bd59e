"""`sbusctl metrics`: the options of the verb, and which of its three forms they choose.

`sbus.cli.metrics` is imported when the verb runs, because it needs a package that comes with the
extra `metrics`.
"""

import functools
import re

import click

from sbus.cli.optional_packages import needs_packages
from sbus.cli.sbusctl.bridge_request import ask_bridge
from sbus.cli.sbusctl.shared_options import SelectedBus, verb


def _file_mode(text: str) -> int:
    """The permissions of a file, from octal digits."""
    if not re.fullmatch("0*[0-7]{1,3}", text):
        raise ValueError(f"{text!r} is not a file mode such as 0660")
    return int(text, 8)


@verb(
    "sbusctl metrics",
    "sbusctl metrics --textfile /var/lib/prometheus/node-exporter/sbus.prom --interval 15",
    "sbusctl metrics --listen /run/sbus-metrics.socket --mode 0660",
    "curl --unix-socket /run/sbus-metrics.socket http://localhost/metrics",
)
@click.option(
    "--textfile",
    type=click.Path(readable=False),
    metavar="FILE",
    help="Write FILE in one step, for node_exporter's textfile collector, which reads files whose "
    "names end in .prom.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Continue, and write FILE again after this time.",
)
@click.option(
    "--listen",
    metavar="SOCKET",
    help="Answer HTTP requests for /metrics on a stream socket: a path, /dev/unix/abstract/HEX, or "
    "/dev/fd/N for an inherited one; the first that systemd passes is /dev/fd/3.",
)
@click.option(
    "--mode",
    type=_file_mode,
    metavar="MODE",
    help="File mode of the path SOCKET, in octal.  [default: 0660]",
)
@click.option(
    "--users-max",
    type=click.IntRange(min=0, max=65_536),
    default=100,
    show_default=True,
    help="Number of users with metrics of their own: those who use most of one of their limits. "
    "The others are only counted.",
)
@click.option("--bridge", is_flag=True, help="Also ask the bridge of the bus, see sbusctl-bridge.")
def metrics(
    selected: SelectedBus,
    textfile: str | None,
    interval: float | None,
    listen: str | None,
    mode: int | None,
    users_max: int,
    bridge: bool,
) -> None:
    """Print the metrics of the bus as OpenMetrics text, for Prometheus.

    If there is no bus, or it does not answer, sbus_up is 0 and the reason is on standard error.
    Needs the right to use the admin socket. Without --interval and --listen, prints or writes once.
    """
    if textfile is not None and listen is not None:
        raise click.UsageError("--textfile and --listen exclude each other")
    if interval is not None and textfile is None:
        raise click.UsageError("--interval needs --textfile")
    if mode is not None and listen is None:
        raise click.UsageError("--mode needs --listen")
    with needs_packages({"prometheus_client": "metrics"}):
        from sbus.cli.metrics.collector import BusCollector, openmetrics_text

    collector = BusCollector(
        selected.address,
        address=selected.admin_address,
        users_max=users_max,
        ask_bridge=functools.partial(ask_bridge, selected) if bridge else None,
    )
    if textfile is not None:
        from sbus.cli.metrics.textfile import write_textfile

        write_textfile(textfile, collector, interval)
    elif listen is not None:
        from sbus.cli.metrics.http_exporter import listen_and_serve

        listen_and_serve(listen, 0o660 if mode is None else mode, collector)
    else:
        from sbus.cli.terminal.standard_output import write

        write(openmetrics_text(collector))

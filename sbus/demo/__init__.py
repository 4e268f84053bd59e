"""The bus at work on this host's own data: `python -m sbus.demo`.

A real `sbusd` on a private socket, three publishers and six subscribers, each its own process and
each an ordinary client. `processes` starts the processes; `clients` is what a publisher and a
subscriber do, and how they report it; `samples` and `logs` are what is published; `tally` collects
the reports, `verify` decides whether everything arrived, and `screen` is the layout of what is
printed.
"""

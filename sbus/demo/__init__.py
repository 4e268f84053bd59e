"""The bus at work on this host's own data: `python -m sbus.demo`.

A real `sbusd` on a private socket, some publishers and some subscribers, each its own process and
each an ordinary client. `run` is the play and `processes` starts its processes; `publish` and
`subscribe` are the two kinds of client; `samples` and `logs` are what there is to say; `reports`
is how the clients tell what they did, `cast` remembers it, `verify` decides whether everything
arrived, `tally` says so; `screen` is how it looks. Nothing in here reaches into the broker.
"""

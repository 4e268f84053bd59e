"""The client library: asynchronous for asyncio and trio, and blocking. `import sbus` has its names.

`inbox.py`, `routes.py`, `requests.py` and `reconnection.py` are the sans-I/O core, and `link.py` is
a connection that never waits. All calls that wait are written once, as coroutines above
`waiting_link.py`, up to the `Connection` of `connection.py`. `async_link.py` runs them in the event
loop of `event_loop.py`, and `blocking_link.py` without one. Programs use `asynchronous.py` and
`blocking.py`.
"""

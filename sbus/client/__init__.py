"""The client library: asynchronous for asyncio and trio, and blocking. `import sbus` has its names.

`inbox.py`, `requests.py` and `reconnection.py` are the sans-I/O core, `link.py` is a connection
that never waits, and `connection.py` and `blocking.py` add the two ways of waiting.
"""

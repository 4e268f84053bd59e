"""The client library: asynchronous for asyncio and trio, and blocking. `import sbus` has its names.

`inbox.py`, `routes.py`, `requests.py` and `reconnection.py` are the sans-I/O core, `link.py` is a
connection that never waits, and `async_link.py` and `blocking_link.py` add the two ways of waiting.
`connection.py` and `blocking.py` are what programs use.
"""

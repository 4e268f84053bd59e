"""The client library, for trio and for plain blocking Python; `import sbus` has its public names.

`inbox.py`, `requests.py` and `reconnection.py` are the sans-I/O core, `link.py` is a connection
that never waits, and `connection.py` and `blocking.py` add the two ways of waiting.
"""

"""The client library: a bus as programs use it, in trio and in plain blocking Python.

`inbox.py` and `barrier.py` are the sans-I/O core, `link.py` is a connection that never waits, and
`connection.py` and `blocking.py` add the two ways of waiting. `import sbus` offers their names.
"""

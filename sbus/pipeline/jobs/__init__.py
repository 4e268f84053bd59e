"""The jobs: each module answers a question about a recording.

A job takes and returns Spark DataFrames. It reads no file, starts no session and prints nothing, so
it runs on a recording, a part of one, or a table in a warehouse. `sbus.pipeline.store.schemas` has
the columns of the tables, `sbus.pipeline.cli.verbs` the command lines.
"""

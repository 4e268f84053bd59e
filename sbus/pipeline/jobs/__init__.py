"""The questions: each file asks one of a recording, as a function of tables to a table.

A function takes and returns Spark DataFrames, reads no file, starts no session and prints nothing,
so that it runs on whatever the caller has: a recording, a part of one, a table in a warehouse. The
command lines are in `sbus.pipeline.verbs`. Columns of the tables: `sbus.pipeline.schemas`.
"""

"""The data pipeline: records what crosses a bus, and analyses recordings with Spark.

| room | what it is |
|---|---|
| `store/` | recordings on disk: written, read, sealed, compacted, deleted |
| `recorder/` | the process that records a bus |
| `spark/` | recordings as a source, and the bus as a sink of Spark |
| `jobs/` | questions about a recording |
| `report/` | a page with the answers |
| `cli/` | command lines |

Only the benchmarks import it. Only `spark/`, `jobs/` and `report/` need Spark and Java.
"""

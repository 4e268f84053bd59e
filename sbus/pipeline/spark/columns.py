"""The tables of a recording as Spark's types, and choices among their columns.

Who reads with a schema of his own, a choice of the columns, is sent only those: a data source in
Python is not told by Spark which columns a query looks at.
"""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sbus.errors import ConfigurationError
from sbus.pipeline.schemas import TABLES


def spark_schema(table: str) -> StructType:
    """All columns of a table."""
    return from_arrow_schema(TABLES[table])


def arrow_schema(schema: StructType, table: str) -> pa.Schema:
    """These columns of a table as what Spark expects to be sent.

    Raises ConfigurationError where the table has no such column, or it is of another type.
    """
    whole = spark_schema(table)
    for field in schema.fields:
        if field.name not in whole.names:
            raise ConfigurationError(
                f"the table {table} has no column {field.name!r}: "
                f"there are {', '.join(whole.names)}"
            )
        kind = whole[field.name].dataType
        if field.dataType != kind:
            raise ConfigurationError(
                f"the column {field.name} of the table {table} is {kind.simpleString()}, "
                f"not {field.dataType.simpleString()}: read it so, and cast it"
            )
    return to_arrow_schema(schema, timezone="UTC")

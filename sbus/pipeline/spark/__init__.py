"""The bus and its recordings as a data source of Spark, `format("sbus")`, and Spark sessions."""

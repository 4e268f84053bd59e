"""The bus as a data source of Spark, `format("sbus")`."""

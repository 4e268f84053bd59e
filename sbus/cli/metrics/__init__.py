"""`sbusctl metrics`: the statistics of a bus for Prometheus."""

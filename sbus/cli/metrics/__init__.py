"""`sbusctl metrics`: what a bus tells Prometheus."""

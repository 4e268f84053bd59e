"""The command lines: `sbusctl record`, and the jobs of `python -m sbus.pipeline`."""

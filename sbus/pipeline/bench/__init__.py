"""Measurements of the pipeline: `python -m sbus.pipeline.bench`."""

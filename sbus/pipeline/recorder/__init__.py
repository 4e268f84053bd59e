"""The recorder: receives what crosses a bus, and writes it to a recording."""

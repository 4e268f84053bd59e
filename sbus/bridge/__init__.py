"""The bridge: a client of the local bus that joins it to other buses, over NATS or directly."""

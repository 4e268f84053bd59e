"""The parts of a worker: sessions, scheduling, sequencing and routing."""

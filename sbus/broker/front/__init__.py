"""The parts of the front: accepting clients and supervising workers."""

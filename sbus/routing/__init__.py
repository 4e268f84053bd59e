"""From a key to its route: data structures without input or output."""

"""From a key to its subscribers: data structures without input or output."""

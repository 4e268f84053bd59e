"""`sbusctl`: the command line for users of a bus and for its administrator."""

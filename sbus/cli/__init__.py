"""The command lines of `sbusd` and `sbusctl`."""

"""`sbusd`: the command line of the daemon."""

"""`python -m sbus.cli.sbusd`: the command `sbusd`."""

from sbus.cli.sbusd.command import main

if __name__ == "__main__":
    main()

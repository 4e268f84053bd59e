"""`python -m sbus.cli.sbusctl`: the command `sbusctl`."""

from sbus.cli.sbusctl.command import main

if __name__ == "__main__":
    main()

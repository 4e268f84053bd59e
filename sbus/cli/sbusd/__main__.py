"""`python -m sbus.cli.sbusd`: the command `sbusd`.

`python -m` first looks for modules in the working directory, where other users may have put some.
"""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from sbus.cli.sbusd.command import main

if __name__ == "__main__":
    main()

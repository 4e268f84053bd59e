"""`python -m sbus.cli.sbusctl`: the command `sbusctl`.

`python -m` first looks for modules in the working directory, where other users may have put some.
"""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from sbus.cli.sbusctl.start import main

if __name__ == "__main__":
    main()

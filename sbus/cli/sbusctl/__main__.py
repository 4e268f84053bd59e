"""`python -m sbus.cli.sbusctl`: the command `sbusctl`.

Python first looks for modules in the working directory, where anybody may have put some.
"""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]

from sbus.cli.sbusctl.start import main

if __name__ == "__main__":
    main()

"""`python -m sbus.pipeline`, for spark-submit, which wants a file; see `submit`."""

from sbus.pipeline.__main__ import main

if __name__ == "__main__":
    main()

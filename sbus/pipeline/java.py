"""`python -m sbus.pipeline.java`: print the home of a Java that Spark runs on, for `JAVA_HOME`."""

import os
import sys

from sbus.errors import ConfigurationError
from sbus.pipeline.spark.java_home import java_home

if __name__ == "__main__":
    try:
        print(java_home(os.environ))
    except ConfigurationError as error:
        sys.exit(f"{error}")

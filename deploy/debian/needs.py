"""msgspec, for programs that have none of their own: this is where Python looks last.

Its compiled part imports itself by its name, so it cannot be a module of this package.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

HERE = os.path.dirname(__file__)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [HERE]) if name == "msgspec" else None


sys.meta_path.append(_Finder)

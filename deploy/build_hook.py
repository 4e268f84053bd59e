"""The build of a wheel: with the compiled step for every Python from 3.11 on, where it can be made.

Without a C compiler the wheel is pure Python. An editable installation uses the checkout, so there
the step is compiled in its place.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parents[1]))

from deploy import compile_step


class CompiledStepHook(BuildHookInterface[Any]):
    """Adds the compiled step to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            compile_step.main()
            return
        self._folder = tempfile.TemporaryDirectory()
        module = Path(self._folder.name) / compile_step.MODULE.name
        try:
            compile_step.compile_step(module)
        except compile_step.CannotCompileError as error:
            self.app.display_warning(f"the step is not compiled: {error}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["force_include"][str(module)] = f"sbus/compiled/{module.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()

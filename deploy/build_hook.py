"""The builds of a wheel and of a source distribution, with the version and the commit in a file.

A wheel has the compiled step for every Python from 3.11 on, where it can be made. Without a C
compiler the wheel is pure Python. An editable installation uses the checkout, so there the step is
compiled in its place, and there is no such file.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parents[1]))

from deploy import build_version, compile_step


class SbusBuildHook(BuildHookInterface[Any]):
    """Adds what is made for a build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            compile_step.main()
            return
        self._folder = tempfile.TemporaryDirectory()
        if not build_version.RECORD.exists():
            record = Path(self._folder.name) / build_version.RECORD.name
            record.write_text(f"{build_version.build()}\n")
            build_data["force_include"][str(record)] = f"sbus/{record.name}"
        if self.target_name == "wheel":
            self._add_step(build_data)

    def _add_step(self, build_data: dict[str, Any]) -> None:
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

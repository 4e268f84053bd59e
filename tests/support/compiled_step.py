"""The compiled step that tests of this process use: it counts stores, and its clock can be set.

`load` compiles it, once for each version of the sources, and must be called before anything imports
`sbus.compiled`. SBUS_TEST_STEP names another one, for instance with sanitizers. Processes that the
tests start use the one that was installed.
"""

import fcntl
import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path

from deploy.compile_step import NoCompilerError, compile_step, is_current

OPTIONS = ("-DSBUS_STEP_TEST", "-g", "-Werror")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1")
DEATH_STATUS = 77
"""The exit status of a process that `die_at_store` ends."""
_BUILT = Path(__file__).resolve().parents[2] / "build/step-for-tests.abi3.so"
_NAME = "sbus.compiled._step"


def load() -> None:
    """Have this process import the step for tests, unless Python is to do its work."""
    if os.environ.get("SBUS_STEP") == "python":
        return
    given = os.environ.get("SBUS_TEST_STEP")
    with suppress(NoCompilerError):
        spec = importlib.util.spec_from_file_location(_NAME, given or _built())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[_NAME] = module


def sanitize(module: Path) -> None:
    """Compile the step with sanitizers. Processes that load it need their libraries preloaded."""
    if not is_current(module, [*OPTIONS, *SANITIZERS]):
        compile_step(module, [*OPTIONS, *SANITIZERS])


def _built() -> Path:
    """The step with the hooks. Processes that share the tests come here at the same time."""
    _BUILT.parent.mkdir(exist_ok=True)
    with open(_BUILT.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_current(_BUILT, OPTIONS):
            compile_step(_BUILT, OPTIONS)
    return _BUILT


# -- hooks, which do nothing where Python does the work --------------------------------------------
def set_clock(now_ns: int) -> None:
    """Show the compiled step this time; 0: the real one."""
    if _NAME in sys.modules:
        sys.modules[_NAME].set_clock(now_ns)


def let_stores_take(each_ns: int) -> None:
    """Have the clock that was set go on so much at each store in shared memory."""
    sys.modules[_NAME].let_stores_take(each_ns)


def count_sections() -> int:
    """The critical sections that the compiled step has entered so far."""
    return sys.modules[_NAME].count_sections() if _NAME in sys.modules else 0


def die_at_store(number: int) -> None:
    """End this process before the compiled step makes this store in shared memory, from 0."""
    sys.modules[_NAME].die_at_store(number)

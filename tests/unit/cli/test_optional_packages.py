"""A missing package is reported with the extra that installs it, and no other error is."""

import pytest

from sbus.cli.optional_packages import needs_packages
from sbus.errors import ConfigurationError


@pytest.mark.parametrize("module", ["prometheus_client", "prometheus_client.metrics_core"])
def test_the_extra_of_a_missing_package_is_named(module: str) -> None:
    said = r"the package prometheus-client: pip install 'sbusd\[metrics\]'"
    extras = {"prometheus_client": "metrics"}
    with pytest.raises(ConfigurationError, match=said), needs_packages(extras):
        raise ModuleNotFoundError(name=module)


@pytest.mark.parametrize("module", ["trio", None])
def test_another_missing_module_is_an_error_of_ours(module: str | None) -> None:
    with pytest.raises(ModuleNotFoundError), needs_packages({"numpy": "recorder"}):
        raise ModuleNotFoundError(name=module)

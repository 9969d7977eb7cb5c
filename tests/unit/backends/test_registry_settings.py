"""Environment variables that say which plugins are looked at."""

import sys

import pytest

import madl
from madl import BackendNotFoundError
from madl.backends import registry
from tests.unit.plugin_folder import PluginFolder


def set_plugins(
    monkeypatch: pytest.MonkeyPatch, named: str, *, automatic: bool = True
) -> None:
    monkeypatch.setenv("MADL_PLUGINS", named)
    if not automatic:
        monkeypatch.setenv("MADL_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_without_autoload_no_entry_point_is_looked_at(
    plugins: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = plugins.install("nvme")
    set_plugins(monkeypatch, "", automatic=False)

    assert madl.backends() == tuple(sorted(registry.BUILT_IN))
    with pytest.raises(BackendNotFoundError) as caught:
        registry.open_device("nvme:0")
    assert str(caught.value) == (
        "no backend opens device 'nvme:0' (no backend of kind 'nvme'; "
        "MADL_DISABLE_PLUGIN_AUTOLOAD is set, so only MADL_PLUGINS names plugins); "
        f"kinds that madl knows: {', '.join(madl.backends())}. Try: `madl info`, "
        "or install the extra or plugin for that device"
    )
    assert module not in sys.modules


def test_a_named_module_is_a_plugin(
    plugins: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.write("madl_tape", "tape")
    set_plugins(monkeypatch, "madl_tape")

    assert registry.open_device("tape:1").device == "tape:1"
    assert registry.plugin_states() == (
        ("tape", "MADL_PLUGINS", "madl_tape", ("tape:0", "tape:1"), ""),
    )


def test_a_named_module_may_be_given_a_kind(
    plugins: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.write("my_things", "tape")
    set_plugins(monkeypatch, " tape = my_things , ")

    assert registry.open_device("tape").device == "tape"


def test_named_plugins_work_without_autoload(
    plugins: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, other = plugins.install("nvme"), plugins.install("tape")
    set_plugins(monkeypatch, module, automatic=False)

    assert registry.open_device("nvme:0").device == "nvme:0"
    assert [state.distribution for state in registry.plugin_states()] == [
        "madl-nvme 1.5"
    ]
    assert other not in sys.modules


def test_naming_an_installed_plugin_is_no_second_claim(
    plugins: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_plugins(monkeypatch, plugins.install("nvme"))

    assert registry.open_device("nvme:0").device == "nvme:0"


def test_a_named_module_that_is_absent_is_shown(
    plugins: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_plugins(monkeypatch, "madl_absent")

    (state,) = registry.plugin_states()

    assert state.failure == "ModuleNotFoundError: No module named 'madl_absent'"
    assert "cpu" in madl.devices()


def test_a_named_module_claims_a_kind_like_any_other(
    plugins: PluginFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.install("nvme")
    plugins.write("mine", "nvme")
    set_plugins(monkeypatch, "nvme=mine")

    with pytest.raises(BackendNotFoundError) as caught:
        registry.open_device("nvme:0")

    assert caught.value.reason == (
        "MADL_PLUGINS and madl-nvme 1.5 claim kind 'nvme'; uninstall all but one"
    )

"""The names of ``madl`` itself, which are imported when they are first used."""

import pickle
from importlib import import_module

import pytest

import madl


@pytest.mark.parametrize("name", madl.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(madl, name).__name__.endswith(name)


def test_the_backends_package_lists_the_kinds_of_devices_when_called() -> None:
    assert {"cpu", "sim"} <= set(madl.backends())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'madl' has no attribute 'pol'$"):
        _ = madl.pol  # type: ignore[attr-defined]  # so the checkers say, too


def test_dir_lists_the_public_names() -> None:
    assert set(madl.__all__) <= set(dir(madl))


@pytest.mark.parametrize(
    "name",
    ["damage.Damage", "shortage.Group", "snapshot.BlockSnapshot", "stats.PoolStats"],
)
def test_former_paths_lead_to_what_is_at_the_new_ones(name: str) -> None:
    module, kind = name.split(".")

    found = pickle.loads(f"cmadl.{module}\n{kind}\n.".encode())

    assert found is getattr(import_module(f"madl.{module}"), kind)
    assert found is getattr(getattr(madl, module), kind)
    assert found.__module__ != f"madl.{module}"


def test_a_former_module_has_no_more_names_than_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"'madl\.pool\.stats' has no attribute"):
        _ = import_module("madl.stats").nothing


def test_a_property_of_a_handle_that_cannot_be_set_says_its_name() -> None:
    memory = madl.Pool("sim").allocate(100)

    with pytest.raises(AttributeError, match="capacity"):
        memory.capacity = 1  # type: ignore[misc]  # as the checkers say, too

"""The names of ``madl`` itself, which are imported when they are first used."""

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

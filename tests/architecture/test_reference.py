"""The reference has every public name, and each of them is explained."""

import importlib
import inspect
import re

import pytest

from tests.pages import ROOT, needs_pages

pytestmark = needs_pages

PACKAGES = ("madl", "madl.backends", "madl.diagnostics", "madl.testing")


def reference() -> str:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return "\n".join(page.read_text("utf-8") for page in pages)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    documented = set(re.findall(r"^\.\. [\w:]+:: ([\w.]+)$", reference(), re.MULTILINE))

    names = {f"{package}.{name}" for name in importlib.import_module(package).__all__}

    assert names - documented == set()


def test_every_integration_is_in_the_reference() -> None:
    modules = (ROOT / "madl" / "integrations").glob("[a-z]*.py")
    with_help = {path.stem for path in modules} - {"peers", "arrays"}

    in_pages = set(re.findall(r"madl\.integrations\.(\w+)$", reference(), re.MULTILINE))

    assert with_help - in_pages == set()


def test_every_field_of_a_record_is_explained() -> None:
    documented = re.findall(r"^\.\. autoclass:: ([\w.]+)$", reference(), re.MULTILINE)
    classes = [found for name in documented if inspect.isclass(found := named(name))]

    untold = [
        f"{one.__name__}.{field}"
        for one in classes
        for field in getattr(one, "_fields", ())
        if f"    {field}: " not in (inspect.getdoc(one) or "")
    ]

    assert untold == []


def named(name: str) -> object:
    """Return what a full name means, importing as little as need be."""
    module, _, rest = name.rpartition(".")
    return getattr(importlib.import_module(module), rest)

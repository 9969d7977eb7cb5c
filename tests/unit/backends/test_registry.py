"""Which backend opens a device: madl's own kinds, and one plugin by its name."""

import inspect
import sys
from importlib import import_module
from typing import ClassVar

import pytest

import madl
from madl import BackendCallError, BackendNotFoundError, NotContiguousError
from madl.backends import hookspecs, registry
from madl.testing import FakeBackend
from tests.programs import output_of
from tests.unit.plugin_folder import WORKING, PluginFolder

BUILT_IN = "cpu, cuda, opencl, shared, sim"
TRY = "Try: `madl info`, or install the extra or plugin for that device"
BROKEN = "raise OSError('libnvme.so.1: no such file')\n"


def refusal(device: str) -> BackendNotFoundError:
    with pytest.raises(BackendNotFoundError) as caught:
        registry.open_device(device)
    return caught.value


@pytest.mark.parametrize("module", registry.BUILT_IN.values())
def test_the_own_modules_have_the_hooks_and_no_others(module: str) -> None:
    found = {
        name: [*inspect.signature(value).parameters]
        for name, value in vars(import_module(module)).items()
        if name.startswith("madl_")
    }

    assert found == {"madl_devices": [], "madl_open": ["device"]}


@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_own_kinds_open_without_a_look_at_plugins(kind: str) -> None:
    code = f"import madl, sys; madl.Pool({kind!r}).allocate(8); print(*sys.modules)"

    loaded = set(output_of("-c", code).split())

    heavy = {"pluggy", "importlib.metadata", "madl.backends.plugins"}
    assert heavy & loaded == set()


@pytest.mark.parametrize("device", ["nvme:0", "nvme:1", "nvme"])
def test_a_plugin_opens_its_devices(plugins: PluginFolder, device: str) -> None:
    plugins.install("nvme")

    assert registry.open_device(device).device == device


def test_a_pool_of_a_plugin_is_a_pool(plugins: PluginFolder) -> None:
    plugins.install("nvme")

    with madl.Pool("nvme:1") as pool, pool.allocate(4096) as memory:
        assert (memory.device, memory.nbytes) == ("nvme:1", 4096)


def test_opening_a_device_imports_its_plugin_only(plugins: PluginFolder) -> None:
    module, other = plugins.install("nvme"), plugins.install("tape")

    registry.open_device("nvme:0")

    assert module in sys.modules
    assert other not in sys.modules


def test_kinds_are_found_without_an_import(plugins: PluginFolder) -> None:
    module = plugins.install("nvme")

    assert madl.backends() == ("cpu", "cuda", "nvme", "opencl", "shared", "sim")
    assert module not in sys.modules


def test_devices_are_those_of_every_plugin_that_works(plugins: PluginFolder) -> None:
    plugins.install("aaa", BROKEN)
    plugins.install("nvme")
    plugins.install("tape")

    found = madl.devices()

    assert {"cpu", "nvme:0", "nvme:1", "sim", "tape:0", "tape:1"} <= set(found)
    assert "aaa" in madl.backends()
    assert isinstance(registry.failures["aaa"], OSError)


def test_a_plugin_that_cannot_be_imported_says_why(plugins: PluginFolder) -> None:
    plugins.install("nvme", BROKEN)

    assert str(refusal("nvme:0")) == (
        "no backend opens device 'nvme:0' (OSError: libnvme.so.1: no such file); "
        "kinds that madl knows: cpu, cuda, nvme, opencl, shared, sim. " + TRY
    )


LEAVES = (
    "import sys; sys.exit('no licence')",
    "class Skipped(BaseException): pass\nraise Skipped('no licence')",
    WORKING.replace("def madl_devices():", "def madl_devices():\n    raise SystemExit"),
)


@pytest.mark.parametrize("source", LEAVES)
def test_a_plugin_that_would_end_the_program_is_shown_and_harms_nobody(
    plugins: PluginFolder, source: str
) -> None:
    plugins.install("aaa", source)
    plugins.install("nvme")

    assert {"cpu", "nvme:0", "nvme:1"} <= set(madl.devices())
    assert not isinstance(registry.failures["aaa"], Exception)
    failures = {state.kind: state.failure for state in registry.plugin_states()}
    assert failures["nvme"] == ""
    assert failures["aaa"].split(":")[0] in ("SystemExit", "Skipped")


@pytest.mark.parametrize("where", ["import", "devices", "open"])
def test_ctrl_c_in_a_plugin_is_the_users(plugins: PluginFolder, where: str) -> None:
    interrupt = "raise KeyboardInterrupt"
    source = {
        "import": interrupt,
        "devices": WORKING.replace(
            "def madl_devices():", f"def madl_devices():\n    {interrupt}"
        ),
        "open": RAISES.replace("{error}", "KeyboardInterrupt"),
    }[where]
    plugins.install("nvme", source)

    with pytest.raises(KeyboardInterrupt):
        registry.open_device("nvme:0") if where == "open" else registry.plugin_states()


def test_a_plugin_that_is_mended_opens(plugins: PluginFolder) -> None:
    module = plugins.install("nvme", BROKEN)
    refusal("nvme:0")

    plugins.write(module, "nvme", WORKING + "\n# longer, so that Python reads it again")

    assert registry.open_device("nvme:0").device == "nvme:0"
    assert registry.failures == {}


def test_a_kind_that_nobody_claims_is_an_error() -> None:
    assert str(refusal("nvme:0")) == (
        "no backend opens device 'nvme:0' (no backend of kind 'nvme'); "
        f"kinds that madl knows: {BUILT_IN}. {TRY}"
    )


def test_a_device_that_a_plugin_has_not_is_an_error(plugins: PluginFolder) -> None:
    plugins.install("nvme")

    assert refusal("nvme:7").reason == "devices of 'nvme': nvme:0, nvme:1"


def test_variants_of_a_kind_belong_to_its_plugin(plugins: PluginFolder) -> None:
    plugins.install("nvme")

    assert registry.open_device("nvme_fast:0").device == "nvme_fast:0"


def test_a_kind_with_an_underscore_is_a_kind(plugins: PluginFolder) -> None:
    plugins.install("my_disk")

    assert registry.open_device("my_disk:0").device == "my_disk:0"
    assert refusal("my:0").reason == "no backend of kind 'my'"


def test_two_claims_of_a_kind_name_both_distributions(plugins: PluginFolder) -> None:
    plugins.install("nvme", name="madl-nvme")
    plugins.install("nvme", name="other-nvme")

    assert refusal("nvme:0").reason == (
        "madl-nvme 1.5 and other-nvme 1.5 claim kind 'nvme'; uninstall all but one"
    )


@pytest.mark.parametrize("kind", ["cpu", "cuda", "sim_fast"])
def test_own_kinds_are_reserved(plugins: PluginFolder, kind: str) -> None:
    plugins.install(kind, name="mine")

    (state,) = registry.plugin_states()

    assert state.distribution == "mine 1.5"
    assert state.failure == f"kind {kind!r} is reserved for madl's own backends"
    assert registry.open_device("cpu").device == "cpu"
    assert kind in registry.BUILT_IN or kind not in madl.backends()


@pytest.mark.parametrize("kind", ["Nvme", "nvme-1"])
def test_a_claim_of_what_is_no_kind_is_shown(plugins: PluginFolder, kind: str) -> None:
    plugins.install(kind, name="mine")

    (state,) = registry.plugin_states()

    assert state.failure == f"{kind!r} is no kind; one is named like 'cuda'"


RAISES = """
from madl.backends import hookimpl
from madl.errors import BackendCallError, BackendNotFoundError, NativeFailure

@hookimpl
def madl_devices():
    raise RuntimeError("the daemon\\ndoes not answer")

@hookimpl
def madl_open(device):
    raise {error}
"""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("BackendNotFoundError(device, (), 'no daemon')", "no daemon"),
        ("KeyError('slot')", "KeyError: 'slot'"),
        ("NotImplementedError", "NotImplementedError"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("GeneratorExit", "GeneratorExit"),
    ],
)
def test_a_plugin_that_cannot_open_says_why(
    plugins: PluginFolder, error: str, reason: str
) -> None:
    plugins.install("nvme", RAISES.replace("{error}", error))

    caught = refusal("nvme:0")

    assert caught.reason == reason
    assert "nvme" in caught.installed


def test_an_error_of_a_device_that_is_there_passes(plugins: PluginFolder) -> None:
    error = "BackendCallError(device, 'open', NativeFailure('open', 5, 'Input/output'))"
    plugins.install("nvme", RAISES.replace("{error}", error))

    with pytest.raises(BackendCallError, match="cannot open: open failed with 5"):
        registry.open_device("nvme:0")


def test_a_plugin_that_cannot_list_its_devices_has_none(plugins: PluginFolder) -> None:
    plugins.install("nvme", RAISES.replace("{error}", "KeyError"))

    (state,) = registry.plugin_states()

    assert state == (
        "nvme",
        "madl-nvme 1.5",
        "madl_nvme",
        (),
        "RuntimeError: the daemon does not answer",
    )


def test_a_hook_that_does_not_exist_is_shown(plugins: PluginFolder) -> None:
    plugins.install("nvme", WORKING + "\n@hookimpl\ndef madl_opne(device): pass\n")

    (state,) = registry.plugin_states()

    assert state.failure.startswith("PluginValidationError: unknown hook 'madl_opne'")


def test_a_hook_with_an_unknown_argument_is_shown(plugins: PluginFolder) -> None:
    plugins.install("nvme", WORKING.replace("madl_open(device)", "madl_open(name)"))

    (state,) = registry.plugin_states()

    assert "'madl_open'" in state.failure
    assert "'name'" in state.failure
    assert "PluginValidationError" in refusal("nvme:0").reason


def test_a_device_of_another_kind_is_not_listed(plugins: PluginFolder) -> None:
    plugins.install("nvme", WORKING.replace('"{kind}:1"]', '"cuda:0"]'))

    (state,) = registry.plugin_states()

    assert state.failure == "it lists 'cuda:0', which is no device of kind 'nvme'"
    assert "nvme:0" not in madl.devices()


def test_a_plugin_without_hooks_opens_nothing(plugins: PluginFolder) -> None:
    plugins.install("nvme", "")

    assert refusal("nvme:0").reason == "devices of 'nvme': none"


def test_the_marker_is_public() -> None:
    assert madl.backends.hookimpl is hookspecs.hookimpl  # type: ignore[attr-defined]  # a module that is called, to mypy a function


def test_plugins_are_looked_for_once(plugins: PluginFolder) -> None:
    assert "nvme" not in madl.backends()
    plugins.install("nvme")

    assert "nvme" not in madl.backends()
    registry.forget_plugins()
    assert "nvme" in madl.backends()


@pytest.mark.parametrize("backend", [object(), FakeBackend, 7])
def test_what_lacks_a_mandatory_name_is_no_backend(backend: object) -> None:
    with pytest.raises(TypeError, match="must be a name such as 'cpu' or a backend"):
        registry.check_backend(backend)


def test_an_array_in_host_memory_lies_on_no_device() -> None:
    assert registry.wrap_array(bytearray(8)) is None


class CudaArray:
    """Offers CUDA's array interface, and has gaps."""

    __cuda_array_interface__: ClassVar[dict[str, object]] = {
        "shape": (2, 2),
        "typestr": "|u1",
        "strides": (4, 1),
        "data": (4096, False),
    }


def test_an_array_is_wrapped_by_the_backend_that_it_belongs_to() -> None:
    with pytest.raises(NotContiguousError):
        registry.wrap_array(CudaArray())


def test_nothing_is_imported_to_recognise_an_array() -> None:
    code = (
        "import sys; from madl.backends import registry; "
        "registry.wrap_array(b''); print(*sys.modules)"
    )

    loaded = set(output_of("-c", code).split())

    assert {"madl.backends.cuda", "madl.backends.opencl", "pyopencl"} & loaded == set()

"""Which OpenCL devices there are, on machines with more and with less than this one."""

from dataclasses import dataclass, field

import pytest

from madl import BackendNotFoundError, Pool
from madl.backends.opencl import OpenclBackend, madl_devices
from madl.backends.opencl import devices as devices
from tests.backends.opencl.device import pyopencl_or_skip
from tests.backends.opencl.faults import cl_error
from tests.programs import output_of

cl = pyopencl_or_skip()
pytestmark = pytest.mark.opencl


@dataclass(eq=False)
class FakeDevice:
    name: str
    type: int = cl.device_type.GPU
    available: bool = True
    svm_capabilities: int = 0


@dataclass
class FakePlatform:
    name: str
    devices: list[FakeDevice] = field(default_factory=list)
    error: Exception | None = None
    version: str = "OpenCL 3.0"

    def get_devices(self) -> list[FakeDevice]:
        if self.error is not None:
            raise self.error
        return self.devices


def install(
    monkeypatch: pytest.MonkeyPatch, *platforms: FakePlatform, error: int = 0
) -> None:
    def get_platforms() -> list[FakePlatform]:
        if error:
            raise cl_error("clGetPlatformIDs", error)
        return list(platforms)

    monkeypatch.setattr(cl, "get_platforms", get_platforms)


def names() -> list[str]:
    return [device.name for device in devices.all_devices()]


def test_devices_have_one_order_whichever_that_of_the_platforms_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = FakePlatform("A", [FakeDevice("cpu", cl.device_type.CPU)])
    two = FakePlatform("C", [FakeDevice("gpu 1"), FakeDevice("gpu 0")])
    one = FakePlatform("B", [FakeDevice("card", cl.device_type.ACCELERATOR)])
    expected = ["card", "gpu 1", "gpu 0", "cpu"]

    install(monkeypatch, cpu, two, one)
    assert names() == expected
    install(monkeypatch, two, one, cpu)
    assert names() == expected


def test_what_cannot_be_used_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        FakePlatform("empty", error=cl_error("clGetDeviceIDs", -1)),
        FakePlatform("off", [FakeDevice("off", available=False)]),
        FakePlatform("on", [FakeDevice("on")]),
    )

    assert names() == ["on"]


def test_a_device_of_several_is_named_by_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = FakeDevice("first"), FakeDevice("second")
    install(monkeypatch, FakePlatform("P", [first, second]))

    assert devices.name_of(second, "opencl") == "opencl:1"
    assert devices.name_of(FakeDevice("a part of second"), "opencl") == "opencl"


def test_managed_memory_is_listed_where_a_device_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coarse = cl.device_svm_capabilities.COARSE_GRAIN_BUFFER
    with_it = FakeDevice("new", svm_capabilities=coarse)
    install(monkeypatch, FakePlatform("P", [FakeDevice("old"), with_it]))

    assert madl_devices() == ["opencl:0", "opencl:1", "opencl_managed:1"]
    assert devices.memory_of(with_it, "managed") == "coarse"


def test_memory_that_a_device_lacks_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = FakeDevice("Old GPU")
    install(monkeypatch, FakePlatform("P", [old]))

    with pytest.raises(BackendNotFoundError) as caught:
        devices.memory_of(old, "fine")

    assert caught.value.device == "opencl_managed:0"
    assert caught.value.reason == ("Old GPU has no fine-grained shared virtual memory")


def test_a_machine_without_a_platform_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, error=-1001)

    with pytest.raises(BackendNotFoundError) as caught:
        devices.resolve("opencl:0")

    assert caught.value.device == "opencl:0"
    assert caught.value.reason == "there is no OpenCL platform, the driver of a device"
    assert madl_devices() == []


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (0, "there is no OpenCL device"),
        (1, "there is 1 OpenCL device, counted from 0"),
        (2, "there are 2 OpenCL devices, counted from 0"),
    ],
)
def test_a_number_beyond_the_last_device_is_told_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch, count: int, reason: str
) -> None:
    fakes = [FakeDevice(f"device {number}") for number in range(count)]
    install(monkeypatch, FakePlatform("P", fakes))

    with pytest.raises(BackendNotFoundError) as caught:
        devices.resolve(f"opencl:{count}")

    assert caught.value.reason == reason


def test_a_context_of_two_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class PairContext:
        devices = (FakeDevice("first"), FakeDevice("second"))

    monkeypatch.setattr(cl, "Context", PairContext)

    with pytest.raises(ValueError, match="the context has 2 devices") as caught:
        devices.resolve(PairContext())

    assert str(caught.value) == (
        "the context has 2 devices and a backend is for one; pass a CommandQueue or a "
        "Device"
    )


def test_a_part_of_a_device_is_a_device_without_a_number() -> None:
    whole = devices.all_devices()[0]
    try:
        parts = whole.create_sub_devices([cl.device_partition_property.EQUALLY, 1])
    except cl.Error as error:
        pytest.skip(f"this device cannot be partitioned: {error}")

    with Pool(OpenclBackend(parts[0])) as pool, pool.allocate(100) as memory:
        memory.fill(5)

        assert pool.device == "opencl"
        assert memory.tobytes() == b"\x05" * 100


def test_without_pyopencl_the_reason_is_one_line() -> None:
    code = (
        "import sys; sys.modules['pyopencl'] = None\n"
        "import madl\n"
        "try: madl.Pool('opencl:0')\n"
        "except madl.BackendNotFoundError as error: print(error.reason)\n"
    )

    printed = output_of("-c", code)

    assert printed.startswith("pyopencl cannot be imported: ")
    assert printed.endswith("; pip install 'madl[opencl]'\n")

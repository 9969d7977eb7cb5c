"""The models of PyTorch's allocator on the recorded traces."""

import math
from functools import cache
from pathlib import Path

import pytest

from madl.diagnostics import open_trace
from madl.diagnostics.torch_models import AllocatorSettings
from madl.diagnostics.whatif import outcomes

FOLDER = Path(__file__).parents[3] / "shared" / "traces"
# What independent simulators of the same documented rules gave on these traces.
DEFAULTS = {
    "c_bert_ft": 1.089,
    "c_dataloader": 1.746,
    "c_gpt2_train": 1.171,
    "c_resnet50_train": 1.510,
    "c_unet_diff": 1.436,
    "c_vit_train": 1.157,
    "m_resnet50_b256": 1.421,
}
EXPANDABLE = {
    "c_bert_ft": 1.010,
    "c_dataloader": 1.379,
    "c_gpt2_train": 1.080,
    "c_resnet50_train": 1.072,
    "c_unet_diff": 1.224,
    "c_vit_train": 1.024,
    "m_resnet50_b256": 1.009,
}

pytestmark = pytest.mark.skipif(
    not FOLDER.exists(), reason=f"the recorded traces are not at {FOLDER}"
)


@cache
def ratios(name: str) -> tuple[float, float]:
    """Return peak reserved over peak live: by default, and with expandable segments."""
    trace = open_trace(FOLDER / f"{name}.trace.gz")
    found = {one.settings: one.peak_reserved_nbytes for one in outcomes(trace)}
    expandable = AllocatorSettings(expandable_segments=True)
    return tuple(  # type: ignore[return-value]  # of two
        found[settings] / trace.peak_live_nbytes
        for settings in (AllocatorSettings(), expandable)
    )


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_allocator_reserves_what_others_found(name: str) -> None:
    assert ratios(name)[0] == pytest.approx(DEFAULTS[name], rel=0.01)


@pytest.mark.parametrize("name", EXPANDABLE)
def test_expandable_segments_reserve_what_others_found(name: str) -> None:
    assert ratios(name)[1] == pytest.approx(EXPANDABLE[name], rel=0.01)


def test_expandable_segments_reserve_less_on_average() -> None:
    default, expandable = (
        math.exp(sum(math.log(ratios(name)[which]) for name in DEFAULTS) / 7)
        for which in (0, 1)
    )

    assert default == pytest.approx(1.343, rel=0.01)
    assert expandable == pytest.approx(1.107, rel=0.01)

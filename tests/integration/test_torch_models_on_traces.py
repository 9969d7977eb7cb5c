"""The models of PyTorch's allocator on the recorded traces."""

import math
from functools import cache

import pytest

from madl.diagnostics import open_trace
from madl.diagnostics.torch.models import AllocatorSettings, model_of
from madl.diagnostics.traces.trace import Trace
from tests.traces import needs_recorded, path_of

# Peak reserved over peak live that independent simulators of the same documented rules
# gave: by default, and with expandable segments.
EXPECTED = {
    "c_bert_ft": (1.089, 1.010),
    "c_dataloader": (1.746, 1.379),
    "c_gpt2_train": (1.171, 1.080),
    "c_llama_gen": (1.109, 1.069),
    "c_lora_ckpt": (1.530, 1.082),
    "c_moe_train": (1.378, 1.058),
    "c_resnet50_train": (1.510, 1.072),
    "c_unet_diff": (1.436, 1.224),
    "c_vit_train": (1.157, 1.024),
    "m_bertlarge_var": (1.445, 1.008),
    "m_gpt2xl_train": (1.069, 1.029),
    "m_resnet50_b256": (1.421, 1.009),
    "m_sdxl_unet": (1.177, 1.061),
}
SETTINGS = (AllocatorSettings(), AllocatorSettings(expandable_segments=True))

pytestmark = needs_recorded


@cache
def ratios(name: str) -> tuple[float, ...]:
    """Return peak reserved over peak live with each of ``SETTINGS``."""
    trace = open_trace(path_of(name))
    return tuple(reserved(trace, one) / trace.peak_live_nbytes for one in SETTINGS)


def reserved(trace: Trace, settings: AllocatorSettings) -> int:
    model = model_of(settings)
    for operation in trace.operations:
        if operation < 0:
            model.free(~operation)
        else:
            model.allocate(operation, trace.nbytes_of[operation], 0)
    return model.peak_reserved_nbytes


@pytest.mark.parametrize("name", EXPECTED)
def test_a_model_reserves_what_independent_simulators_found(name: str) -> None:
    assert ratios(name) == pytest.approx(EXPECTED[name], rel=0.002)


def test_the_averages_are_those_of_the_simulators() -> None:
    default, expandable = (
        math.exp(sum(math.log(ratios(name)[which]) for name in EXPECTED) / 13)
        for which in range(2)
    )

    assert default == pytest.approx(1.311, abs=0.002)
    assert expandable == pytest.approx(1.081, abs=0.002)

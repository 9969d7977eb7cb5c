"""Every call to the device fails once, in every way; nothing is lost by it."""

import random

import pytest

from madl.errors import BackendCallError
from tests.fakes import Failure, FakeBackend, Fault
from tests.property.pool_model import SETTINGS, PoolModel, Setting, random_step
from tests.tally import tally

STEPS = 30
ON_FAKES = {name: item for name, item in SETTINGS.items() if not item.is_sim}


def walk(setting: Setting, seed: int, fault: Fault | None) -> PoolModel:
    """Take random steps on a device with a fault; return what came of it."""
    model = PoolModel(setting)
    assert isinstance(model.backend, FakeBackend)
    model.backend.fault = fault
    draw = random.Random(seed)
    for _ in range(STEPS):
        held, committed = list(model.live), model.backend.committed_nbytes
        model.is_trimming = False
        try:
            random_step(model, draw)
        except (BackendCallError, KeyboardInterrupt):
            assert model.live == held
            if fault is not None and not fault.lasts:  # else undoing fails as well
                assert model.backend.committed_nbytes <= committed
                if gives_nothing_back(model):
                    assert model.backend.committed_nbytes == committed
            if not is_always_interrupted(fault):
                model.check()
    tally.operations += STEPS
    tally.faults += len(
        [n for n in range(len(model.backend.calls)) if fault and fault.strikes(n + 1)]
    )
    return model


def is_always_interrupted(fault: Fault | None) -> bool:
    """Return whether what is half done cannot be put right either."""
    return bool(fault and fault.lasts and fault.failure is Failure.INTERRUPTED)


def gives_nothing_back(model: PoolModel) -> bool:
    """Return whether the step that failed would not have given memory back."""
    setting = model.setting
    releases = not setting.commits or not setting.recycle or not setting.pooling
    return not releases and not model.is_trimming


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("setting", ON_FAKES.values(), ids=ON_FAKES)
def test_each_call_may_fail_once(setting: Setting, failure: Failure) -> None:
    for seed in range(2):
        fault_free = walk(setting, seed, None)
        assert isinstance(fault_free.backend, FakeBackend)

        for call in range(1, len(fault_free.backend.calls) + 1):
            model = walk(setting, seed, Fault(call, failure))

            model.check()
            model.close()


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("setting", ON_FAKES.values(), ids=ON_FAKES)
def test_a_device_may_fail_for_a_while(setting: Setting, failure: Failure) -> None:
    for call in (1, 2, 3, 5, 8, 13, 21):
        model = walk(setting, 3, Fault(call, failure, lasts=True))
        assert isinstance(model.backend, FakeBackend)
        model.backend.recover()

        model.check()
        model.allocate(5000)
        model.close()

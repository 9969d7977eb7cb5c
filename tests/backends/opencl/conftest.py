"""A backend, queues of its context, and a gate that holds them back."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from madl.backends.opencl import OpenclBackend
from tests.backends.opencl.device import Gate


@pytest.fixture
def backend() -> OpenclBackend:
    return OpenclBackend()


@pytest.fixture
def new_queue(backend: OpenclBackend) -> Callable[[], Any]:
    import pyopencl as cl

    return lambda: cl.CommandQueue(backend.context)


@pytest.fixture
def gate(backend: OpenclBackend) -> Iterator[Gate]:
    gate = Gate(backend.context)
    yield gate
    gate.open()

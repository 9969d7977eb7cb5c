"""What does an expression of PyOpenCL arrays cost over either pool?"""

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import contenders
from benchmarks.answer import Answer, Row, Table
from benchmarks.timing import in_turns, ratio, spread
from madl import Pool

LENGTHS = (1_000, 100_000)
EXPRESSIONS = 200
MADL, OPENCL = "madl", "PyOpenCL pool"

Expression = Callable[[], object]


def run(*, quick: bool) -> Answer:
    """Evaluate ``a * b + c`` with the arrays of either pool in turns."""
    question = "What does an expression of PyOpenCL arrays cost?"
    try:
        contenders.has_opencl_pool()
    except ImportError as error:
        return Answer(question, (), {}, (f"not measured: {error}",))
    results = {length: _at(length, 7 if quick else 15) for length in LENGTHS}
    rows: list[Row] = [
        (name, *(spread(results[length][name]) for length in LENGTHS))
        for name in (MADL, OPENCL)
    ]
    over = [ratio(result[OPENCL], result[MADL]).median for result in results.values()]
    return Answer(
        question,
        (
            Table(
                "us an expression of float32 arrays, median (least-most)",
                ("elements", *map(str, LENGTHS)),
                tuple(rows),
            ),
        ),
        {f"{OPENCL} over {MADL}": min(over)},
        ("On PoCL: device and host are one processor, and share its time.",),
    )


def _at(length: int, rounds: int) -> dict[str, list[float]]:
    pocl: Any = importlib.import_module("madl.backends.opencl")
    over_a_pool: Any = importlib.import_module("madl.integrations.pyopencl")
    tools: Any = importlib.import_module("pyopencl.tools")
    queue = contenders.opencl_queue()
    with Pool(pocl.OpenclBackend(queue)) as pool:
        allocators = {
            MADL: over_a_pool.PoolAllocator(pool),
            OPENCL: tools.MemoryPool(tools.ImmediateAllocator(queue)),
        }
        arrays = importlib.import_module("pyopencl.array")
        expressions = {
            name: _expression(arrays, queue, allocator, length)
            for name, allocator in allocators.items()
        }
        found = in_turns(
            {name: partial(_us, one, queue) for name, one in expressions.items()},
            rounds=rounds,
        )
        del expressions
    return found


def _expression(arrays: Any, queue: Any, allocator: Any, length: int) -> Expression:  # noqa: ANN401  # of pyopencl
    a, b, c = (
        arrays.to_device(queue, np.full(length, value, np.float32), allocator=allocator)
        for value in (1, 2, 3)
    )
    return lambda: a * b + c


def _us(expression: Expression, queue: Any) -> float:  # noqa: ANN401  # of pyopencl
    started = time.perf_counter_ns()
    for _ in range(EXPRESSIONS):
        expression()
    queue.finish()
    return (time.perf_counter_ns() - started) / EXPRESSIONS / 1e3

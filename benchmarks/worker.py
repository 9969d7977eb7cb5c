"""A process that measures when it is told to.

What is set before a process starts, such as ``LD_PRELOAD``, takes a process for each
contender; that they wait for each other keeps the rounds in turns.
"""

import importlib
import json
import os
import subprocess
import sys
from typing import Any, Self

from benchmarks import ROOT


class WorkerError(RuntimeError):
    """A worker could not do what it was asked."""


class Worker:
    """Calls functions in a process with an environment of its own."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, function: str, *arguments: object) -> Any:  # noqa: ANN401  # whatever JSON holds
        """Call ``"module:name"`` there.

        Raises:
            WorkerError: It raised, or the process died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([function, arguments]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{function}: the process died")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{function}: {answer['error']}")
        return answer["result"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def main() -> None:
    """Answer one line after the other, until there is none."""
    if os.environ.get("TEST_MADL_BENCH_HOT_PATH") == "interpreted":
        sys.modules["madl.hotpath._compiled"] = None  # type: ignore[assignment]  # its import fails
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    for line in sys.stdin:
        function, arguments = json.loads(line)
        module, _, name = function.partition(":")
        try:
            result = getattr(importlib.import_module(module), name)(*arguments)
            answer = {"result": result}
        except Exception as error:  # the caller decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

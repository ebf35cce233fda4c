"""A process that answers requests, one line of JSON each way; `side.serve` is its other end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


class Process:
    """A Python process. It sleeps in a read between requests, and so does the one that asks while
    the answer is made: the two never compete for a CPU.

    Parameters
    ----------
    name : str
        For messages.
    command : arguments of the Python interpreter
    folder : working directory
    environment : variables in addition to those of this process
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the process that asks
        )

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request.

        Raises
        ------
        ValueError
            The process ended; its message is on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            status = self._process.wait()
            raise ValueError(
                f"the process of {self.name} ended during {request!r} with exit status {status}; "
                "its message, if any, is above"
            )
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()

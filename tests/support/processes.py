"""Run Python in processes of its own, with other settings in the environment."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Code that makes a process use the team of threads of this name, as that of other systems.
TEAMS = {
    "default": "",
    "queue": """
from implicit_conv.kernels.cpu.runtime import queue_team, active_threads, launch
launch.make_team = lambda: queue_team.QueueTeam(active_threads.cpu_count())
""",
}


def run_python(*arguments, folder=ROOT, timeout=600, **environment):
    """The completed process of ``python *arguments``, which imports this checkout.

    It runs in `folder`; `environment` is added to that of the tests.
    """
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    added = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, **added},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output_of(code, *arguments, **options):
    """What `code` prints; the test fails if the process does. `options` are those of run_python."""
    result = run_python("-c", code, *arguments, **options)
    assert result.returncode == 0, f"{options}: {result.returncode} {result.stderr[-2000:]}"
    return result.stdout.strip()

"""Programs of tests: processes of their own, which have not used the GPU."""

from __future__ import annotations

import os
import subprocess
import sys

from .limits import PROGRAM
from .probe import ROOT


def ran(*command, status=0, **environment):
    """Runs Python from the repository's root. `status`: None if any will do. None takes a variable out."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        **{"cwd": ROOT, "env": {name: value for name, value in env.items() if value is not None}},
        **{"capture_output": True, "text": True, "timeout": PROGRAM},
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def goes_well(*command, **environment):
    done = ran(*command, **environment)
    assert done.stdout.endswith("well\n"), done.stdout + done.stderr
    return done

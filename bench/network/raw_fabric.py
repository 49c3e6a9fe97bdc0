"""How long a provider of libfabric takes for a message by itself: fi_pingpong, of Debian's libfabric-bin."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.network.contestants import Place

MOST = 64 << 10  # bytes; from there on, bandwidth counts
ITERATIONS = 500
PATIENCE = 30.0


def missing() -> bool:
    return shutil.which("fi_pingpong") is None


def ping_pong_us(hosts: Sequence[Place], provider: str, nbytes: int) -> float:
    """Measures the microseconds that a message of so many bytes takes from one host to the next, one way."""
    command = ["fi_pingpong", "-p", provider, "-e", "rdm", "-I", str(ITERATIONS), "-S", str(nbytes)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    server = hosts[0].popen(command, **pipes)
    try:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            client = hosts[1].popen([*command, hosts[0].address], **pipes)
            out = client.communicate(timeout=PATIENCE)[0]
            if client.returncode == 0:
                return microseconds(out)
            time.sleep(0.1)  # the server does not listen yet
    finally:
        server.kill()
        server.communicate()
    raise TimeoutError(f"fi_pingpong finds no answer over the provider {provider}")


def microseconds(table: str) -> float:
    """Reads the time of a transfer from what fi_pingpong prints."""
    heading, row = (line.split() for line in table.strip().splitlines()[-2:])
    return float(row[heading.index("usec/xfer")])


def rounds(hosts: int) -> int:
    """The fewest rounds of messages after which every host has something of all others."""
    return math.ceil(math.log2(hosts))

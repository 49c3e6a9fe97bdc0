"""vLLM's plugin: groups of vLLM's workers on CPUs are served by ringreduce.

vLLM calls :func:`register` in each of its processes, also where nobody has asked for ringreduce.
"""

from __future__ import annotations

import os

from ringreduce.frameworks import torch as backend

__all__ = ["register"]


def register() -> None:
    """Puts ringreduce into this process, if ``VLLM_PLUGINS`` names it or ``RINGREDUCE_AS`` is gloo."""
    if "RINGREDUCE_AS" not in os.environ:
        if "ringreduce" not in os.environ.get("VLLM_PLUGINS", "").split(","):
            return
        os.environ["RINGREDUCE_AS"] = "gloo"  # for this process and those that it starts
        backend.serve_gloo()
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.get_device_communicator_cls = classmethod(lambda _: f"{__name__}.communicator.Communicator")

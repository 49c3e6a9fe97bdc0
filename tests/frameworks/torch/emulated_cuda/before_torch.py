"""Imported before torch, it gives torch an accelerator that computes gradients: torch asks for one but once."""

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.frameworks.torch.gpu_groups import MODULE

assert "torch" not in sys.modules
_torch = find_spec("torch")
assert _torch is not None and _torch.origin is not None
_needed = Path(_torch.origin).parent / "lib" / "libtorch_global_deps.so"
ctypes.CDLL(str(_needed), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(str(MODULE))

"""Which classes of optimizers can be sharded, and how."""

from __future__ import annotations

from typing import Any, Literal

from torch import optim

__all__ = ["Cut", "choose_cut"]

Cut = Literal["elements", "parameters"]

# The update of an element depends only on its own gradients and state.
ELEMENT_WISE = {
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
}  # fmt: skip
# An update depends on the parameter's shape. Names, because not every version of torch has these classes.
NOT_ELEMENT_WISE = {"Adafactor", "Muon"}
REFUSED = {
    optim.LBFGS: "its step uses all parameters together",
    optim.SparseAdam: "it takes sparse gradients",
}


def choose_cut(optimizer: Any, shard: Cut | None) -> Cut:
    """Returns how to divide parameters for an optimizer class.

    Raises:
        ValueError: the class cannot be sharded, or not in the way that shard names.
    """
    if not isinstance(optimizer, type) or not issubclass(optimizer, optim.Optimizer):
        raise TypeError(f"optimizer_class must be a class of torch.optim.Optimizer, not {optimizer!r}")
    for refused, why in REFUSED.items():
        if issubclass(optimizer, refused):
            raise ValueError(f"optimizer_class: {refused.__name__} cannot be sharded: {why}")
    if not isinstance(shard, str | None) or shard not in (None, "elements", "parameters"):
        raise ValueError(f"shard must be 'elements', 'parameters' or None, not {shard!r}")
    if shard == "elements" and optimizer.__name__ in NOT_ELEMENT_WISE:
        raise ValueError(f"shard: {optimizer.__name__} needs whole parameters; use shard='parameters'")
    # A subclass may do more than its base class, but whole parameters are always right.
    return shard or ("elements" if optimizer in ELEMENT_WISE else "parameters")

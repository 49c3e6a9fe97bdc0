"""What is known of optimizers' classes."""

from __future__ import annotations

from typing import Any, Literal

from torch import optim

__all__ = ["Cut", "choose_cut"]

Cut = Literal["elements", "parameters"]

# An element's update depends on this element's gradients and state alone.
ELEMENT_WISE = {
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
}  # fmt: skip
# An update depends on the parameter's shape. By name: not every version of torch has them.
NOT_ELEMENT_WISE = {"Adafactor", "Muon"}
REFUSED = {
    optim.LBFGS: "its step looks at all parameters together",
    optim.SparseAdam: "it takes sparse gradients",
}


def choose_cut(optimizer: Any, shard: Cut | None) -> Cut:
    """How parameters are divided for an optimizer of this class.

    Raises:
        ValueError: shard is no way to divide, or none that is right for this class.
    """
    for refused, why in REFUSED.items():
        if issubclass(optimizer, refused):
            raise ValueError(f"optimizer_class: {refused.__name__} cannot be sharded: {why}")
    if shard not in (None, "elements", "parameters"):
        raise ValueError(f"shard must be 'elements', 'parameters' or None, not {shard!r}")
    if shard == "elements" and optimizer.__name__ in NOT_ELEMENT_WISE:
        raise ValueError(f"shard: {optimizer.__name__} looks at whole parameters; take 'parameters'")
    # A subclass may do more than its base: whole parameters are right for it, too.
    return shard or ("elements" if optimizer in ELEMENT_WISE else "parameters")

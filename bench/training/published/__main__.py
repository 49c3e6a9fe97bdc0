"""Compares predictions with published scaling figures, from the hardware that their authors state.

    python3 -m bench.training.published             # some minutes
    python3 -m bench.training.published --ranges    # a 7 B model on 8, 64 and 256 GPUs

Each case has the model's layers and the stated devices and links. The computing time of one GPU is published beside the
figure, or set so that the smallest world agrees; what is compared is how the rate changes with the world. What the
sources do not state is assumed: docs/planning.md says what.
"""

from __future__ import annotations

from argparse import ArgumentParser

from bench.training.published.convolutional import ddp, horovod, imagenet_in_an_hour
from bench.training.published.long_runs import diloco, large_runs
from bench.training.published.ranges import ranges
from bench.training.published.transformers import llama3, megatron, megatron_3d, torchtitan, zero3
from ringreduce.text import markdown

NEAR = 0.15
CASES = (
    imagenet_in_an_hour, horovod, ddp, megatron, torchtitan, megatron_3d, zero3, llama3, diloco, large_runs,
)  # fmt: skip


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--ranges", action="store_true", help="the table for a 7 B model, in place of the figures"
    )
    options = parser.parse_args()
    if options.ranges:
        print(markdown(ranges()))
        return
    points = [point for case in CASES for point in case()]
    rows = [["source", "what", "published", "predicted", "difference"]]
    for one in points:
        figures = (one.form.format(value) for value in (one.published, one.predicted))
        rows.append([one.source, one.what, *figures, f"{one.predicted / one.published - 1:+.1%}"])
    near = sum(abs(one.predicted / one.published - 1) <= NEAR for one in points)
    print(f"{markdown(rows)}\n\n{near} of {len(points)} points are within {NEAR:.0%}")


if __name__ == "__main__":
    main()

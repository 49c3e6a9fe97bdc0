"""bench/training/published: its models have the published sizes, and its cheap cases agree."""

import pytest

pytest.importorskip("pydantic")

from bench.training.published.convolutional import imagenet_in_an_hour, resnet, vgg16
from bench.training.published.long_runs import DILOCO, SHARES, large_runs
from bench.training.published.transformers import megatron


@pytest.mark.parametrize(
    ("layers", "millions", "billions"),
    [(resnet((3, 4, 6, 3)), 25.5, 4.1), (resnet((3, 4, 23, 3)), 44.4, 7.8), (vgg16(), 138.3, 15.5)],
)
def test_the_networks_have_the_published_parameters_and_multiply_adds(layers, millions, billions):
    assert sum(numel for numel, _ in layers) / 1e6 == pytest.approx(millions, rel=0.01)
    assert sum(work for _, work in layers) / 1e9 == pytest.approx(billions, rel=0.07)


@pytest.mark.parametrize("case", [imagenet_in_an_hour, megatron, large_runs])
def test_figures_are_reproduced(case):
    for point in case():
        assert point.predicted == pytest.approx(point.published, rel=0.15), point


def test_each_row_has_a_rate_for_each_share():
    assert all(len(rates) == len(SHARES) and list(rates) == sorted(rates) for rates in DILOCO.values())

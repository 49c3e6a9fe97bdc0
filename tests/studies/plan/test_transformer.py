"""A described transformer has the parameters, operations and activations of the published formulas."""

import pytest

pytest.importorskip("pydantic")

from ringreduce.studies.plan import Transformer

GPT3 = {
    "layers": 96, "width": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200, "batch": 1,
    "flops": 312e12, "efficiency": 0.5, "memory_rate": "1.5 TB/s",
}  # fmt: skip


def test_gpt3_has_175_billion_parameters():
    """Narayanan et al. 2021, equation 2: 12 l h^2 (1 + 13 / 12 h + (V + s) / 12 l h)."""
    l, h, v, s = 96, 12288, 51200, 2048  # noqa: E741
    expected = 12 * l * h * h * (1 + 13 / (12 * h) + (v + s) / (12 * l * h))
    assert Transformer(**GPT3).job("gpt3").elements == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("recompute", "factor"), [("layers", 96), ("attention", 72)])
def test_operations_are_those_of_the_formula(recompute, factor):
    """Equation 3 of the same: 96 B s l h^2 (1 + s / 6h + V / 16 l h) with recomputation; 72 and 12 without."""
    l, h, v, s = 96, 12288, 51200, 2048  # noqa: E741
    expected = factor * s * l * h * h * (1 + s / (6 * h) + v / (factor / 6 * l * h))
    made = Transformer(**GPT3, recompute=recompute).job("gpt3")
    seconds = sum(layer.forward_s + layer.backward_s for layer in made.layers)
    assert seconds * 156e12 == pytest.approx(expected, rel=1e-6)


def test_activations_are_those_of_the_formula():
    """Korthikanti et al. 2023: s b h (34 + 5 a s / h) bytes for a layer, and 4 s b V for the logits."""
    l, h, v, s, a = 96, 12288, 51200, 2048, 96  # noqa: E741
    made = Transformer(**GPT3, recompute="none").job("gpt3")
    assert made.activation_bytes == pytest.approx(l * s * h * (34 + 5 * a * s / h) + 4 * s * v)


def test_adam_holds_16_bytes_for_a_parameter_of_16_bits():
    """Rajbhandari et al. 2020: 2 + 2 + 12."""
    assert Transformer(**GPT3).job("gpt3").optimizer.state_bytes == 12

"""Fitting costs: those that times were made with are found again, and what machines do is met."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pydantic")
pytest.importorskip("scipy")

import ringreduce
from ringreduce import schedules
from ringreduce.simulate.model import Model, Point, fit, fit_points
from tests.conftest import on_threads

NAMES = [entry.name for entry in schedules.algorithms("all_reduce")]
SIZES = [64, 4 << 10, 256 << 10, 16 << 20]
SECONDS = {
    "round": [3e-7, 3e-7, 4e-7, 5e-7],
    "send": [2e-7, 2e-7, 3e-7, 6e-7],
    "receive": [3e-7, 3e-7, 3e-7, 4e-7],
    "change": [3e-6, 3e-6, 4e-6, 4e-6],
    "copy_out": [2e-10, 1.5e-10, 8e-11, 1.2e-10],
    "copy_in": [1e-10, 1e-10, 9e-11, 2e-10],
    "combine": [2e-10, 2e-10, 1.2e-10, 2.5e-10],
    "latency": [1e-7, 1e-7, 2e-7, 2e-7],
}
TRUE = Model(made={}, cores=2, sizes=SIZES, seconds=SECONDS, errors=(0.0, 0.0))


def points(sizes, worlds, noise=0.0):
    random = np.random.default_rng(1)
    return [
        Point(name, world, nbytes, TRUE.predict(name, nbytes, world).seconds * random.lognormal(0, noise))
        for name in NAMES
        for nbytes in sizes
        for world in worlds
    ]


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.03), (0.1, 0.1)])
def test_times_of_other_sizes_and_worlds_are_predicted(noise, within):
    model = fit_points(points(SIZES, [2, 3, 5], noise), 2, {})
    assert model.errors[0] < max(0.02, noise)
    others = points([512, 32 << 10, 1 << 20], [2, 4, 8])
    errors = [abs(model.predict(p.algorithm, p.nbytes, p.world).seconds / p.seconds - 1) for p in others]
    assert np.median(errors) < within


def test_one_wild_measurement_does_not_spoil_the_rest():
    wild = points(SIZES, [2, 3, 5])
    wild[7] = wild[7]._replace(seconds=50 * wild[7].seconds)
    model = fit_points(wild, 2, {})
    assert model.errors[0] < 0.05


def test_a_fitted_model_predicts_this_machine_and_is_kept(tmp_path):
    models = ringreduce.run(fit, 2, 0.002)
    assert models[0] == models[1]
    model = models[0]
    model.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json") == model
    # Eight thousand times the bytes take longer, on any machine and however noisy.
    assert model.predict("ring", 64 << 20, 2).seconds > model.predict("ring", 8 << 10, 2).seconds
    assert model.predict("two_shot", 1 << 20, 2).world == 2


def test_errors_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.json: No such file"):
        Model.load(tmp_path / "nowhere.json")
    (tmp_path / "other.json").write_text('{"cores": 2}')
    with pytest.raises(ValueError, match=r"other\.json: no cost model: \w+: Field required") as caught:
        Model.load(tmp_path / "other.json")
    assert "\n" not in str(caught.value)

    def alone(comm):
        with pytest.raises(ValueError, match="2 or more ranks of one host"):
            fit(comm)

    on_threads(1, alone)

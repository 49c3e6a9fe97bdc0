"""Fitting costs: those that times were made with are found again, and what machines do is met."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("pydantic")
pytest.importorskip("scipy")

import ringreduce
from ringreduce.model import Costs, Model, fit
from ringreduce.model.fitting import Point, fit_costs, on_cores_of_their_own
from ringreduce.model.model import of_their_own
from tests.conftest import needs_libfabric, on_threads, slow_rows

NAMES = of_their_own("all_reduce")
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
    "transfer": [0.0] * 4,
}
TRUE = Model(made={}, cores=2, inside=Costs(sizes=SIZES, seconds=SECONDS, errors=(0.0, 0.0)))


def points(sizes, worlds, noise=0.0):
    random = np.random.default_rng(1)
    return [
        Point(name, world, nbytes, TRUE.predict(name, nbytes, world).seconds * random.lognormal(0, noise))
        for name in NAMES
        for nbytes in sizes
        for world in worlds
    ]


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.03), *slow_rows((0.1, 0.1))])
def test_times_of_other_sizes_and_worlds_are_predicted(noise, within):
    costs = fit_costs(points(SIZES, [2, 3, 5], noise), 2)
    assert costs.errors[0] < max(0.02, noise)
    model = Model(made={}, cores=2, inside=costs)
    others = points([512, 32 << 10, 1 << 20], [2, 4, 8])
    errors = [abs(model.predict(p.algorithm, p.nbytes, p.world).seconds / p.seconds - 1) for p in others]
    assert np.median(errors) < within


@pytest.mark.slow
def test_one_wild_measurement_does_not_spoil_the_rest():
    wild = points(SIZES, [2, 3, 5])
    wild[7] = wild[7]._replace(seconds=50 * wild[7].seconds)
    costs = fit_costs(wild, 2)
    assert costs.errors[0] < 0.05
    model = Model(made={}, cores=2, inside=costs)
    # It is what its algorithm is said to take at that size in that world, and nowhere else.
    name, world, nbytes, seconds = wild[7]
    assert model.predict(name, nbytes, world).seconds == pytest.approx(seconds)
    right = TRUE.predict(name, SIZES[-1], world).seconds
    assert model.predict(name, SIZES[-1], world).seconds == pytest.approx(right, rel=0.1)


@pytest.mark.slow
def test_a_fitted_model_predicts_this_machine_and_is_kept(tmp_path):
    models = ringreduce.run(fit, 2, 0.002, (64, 8 << 10, 1 << 20, 16 << 20))
    assert models[0] == models[1]
    model = models[0]
    model.save(tmp_path / "model.json")
    assert Model.load(tmp_path / "model.json") == model
    # Eight thousand times the bytes take longer, on any machine and however noisy.
    assert model.predict("ring", 64 << 20, 2).seconds > model.predict("ring", 8 << 10, 2).seconds
    assert model.predict("two_shot", 1 << 20, 2).world == 2

    def explained(comm):
        choice = comm.explain(1 << 20, model=model)
        return choice.algorithm, [
            (one.algorithm, one.seconds, sum(one.made_of.values())) for one in choice.predicted
        ]

    (chosen, ranking), other = ringreduce.run(explained, 2)
    assert (chosen, ranking) == other
    assert sorted(name for name, _, _ in ranking) == sorted(NAMES)
    assert [seconds for _, seconds, _ in ranking] == sorted(seconds for _, seconds, _ in ranking)
    # The simulator keeps causes as floats. A correction may make the sum much smaller than what was rounded.
    assert all(seconds == pytest.approx(made, rel=1e-5) for _, seconds, made in ranking)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", pytest.param("ofi", marks=needs_libfabric)])
def test_a_model_of_messages_between_hosts(transport, monkeypatch):
    """It knows what carried them, so that auto chooses as it does there."""

    def rank_main(comm):
        os.environ["RINGREDUCE_HOST"] = str(comm.rank)
        with ringreduce.init(
            comm.rank, comm.size, comm.all_gather_object, transport=f"shm+{transport}", timeout=60
        ) as apart:
            return apart.transport, fit(apart, 0.002, (64, 8 << 10, 1 << 20, 16 << 20))

    (used, model), other = ringreduce.run(rank_main, 2)
    assert (used, model) == other
    assert used == model.made["transport"] == model.network(2, 64).transport == transport
    assert model.predict("ring", 64 << 20, 2).seconds > model.predict("ring", 8 << 10, 2).seconds


def test_hosts_that_share_a_machine_are_measured_on_different_cores():
    usable = os.sched_getaffinity(0)

    def rank_main(comm):
        os.environ["RINGREDUCE_HOST"] = str(comm.rank)
        with (
            ringreduce.init(comm.rank, comm.size, comm.all_gather_object, timeout=60) as apart,
            on_cores_of_their_own(apart),
        ):
            return len(apart.hosts), os.sched_getaffinity(0)

    found = ringreduce.run(rank_main, 2)
    assert [hosts for hosts, _ in found] == [2, 2]
    assert len(found[0][1] | found[1][1]) == min(2, len(usable))


def test_errors_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.json: No such file"):
        Model.load(tmp_path / "nowhere.json")
    (tmp_path / "other.json").write_text('{"cores": 2}')
    with pytest.raises(ValueError, match=r"other\.json is not a cost model: \w+: Field required") as caught:
        Model.load(tmp_path / "other.json")
    assert "\n" not in str(caught.value)

    def alone(comm):
        with pytest.raises(ValueError, match="needs 2 or more ranks, and there is only 1"):
            fit(comm)

    on_threads(1, alone)


def test_what_a_model_does_not_know_is_refused():
    with pytest.raises(ValueError, match="no costs of messages between hosts"):
        TRUE.predict("ring", 64, 4, ranks_per_host=2)
    with pytest.raises(ValueError, match="world must be a multiple of ranks_per_host, 3, not 4"):
        TRUE.predict("ring", 64, 4, ranks_per_host=3)
    with pytest.raises(ValueError, match="seconds: missing "):
        Costs(sizes=[1], seconds={"round": [1.0]}, errors=(0, 0))
    with pytest.raises(ValueError, match="does not have one value for each of the 1 sizes"):
        Costs(sizes=[1], seconds={**SECONDS, "round": [1.0, 2.0]}, errors=(0, 0))

"""LocalSGD, DiLoCo and streaming DiLoCo beside what their papers say, computed by one process."""

from __future__ import annotations

import importlib.util
import io
import itertools
import time
from functools import partial
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from torch.optim import SGD, AdamW

import ringreduce
from ringreduce.low_communication import DiLoCo, LocalSGD, StreamingDiLoCo
from ringreduce.low_communication.pace import Pace
from ringreduce.low_communication.streaming import cut
from tests.training.models import TINY, batch, chain, on_ranks, same

STREAMING = {"every": 4, "fragments": 3, "overlap": 2, "mixing": 0.25}
METHODS = {
    "local_sgd": lambda parameters, comm, **more: LocalSGD(parameters, comm, **{"every": 3, **more}),
    "post_local": lambda parameters, comm, **more: LocalSGD(parameters, comm, every=3, start=2, **more),
    "diloco": lambda parameters, comm, **more: DiLoCo(parameters, comm, **{"every": 3, **more}),
    "streaming": lambda parameters, comm, **more: StreamingDiLoCo(parameters, comm, **STREAMING, **more),
}
ALL = pytest.mark.parametrize("method", METHODS)


def values(model: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def local_step(model: Any, optimizer: Any, rank: int, step: int) -> None:
    optimizer.zero_grad()
    inputs = batch(rank, step, next(model.parameters()).dtype)
    model(inputs).square().mean().backward()
    optimizer.step()


def train(
    comm: Any, make: Any, steps: int, inner: Any = AdamW, dtype: Any = torch.float32
) -> tuple[Any, list[list[Any]]]:
    """Returns the outer optimizer, and the parameters after each step."""
    model = chain(dtype=dtype)
    optimizer = inner(model.parameters(), lr=0.01)
    outer = make(model.parameters(), comm)
    history = []
    for step in range(steps):
        local_step(model, optimizer, comm.rank, step)
        outer.step()
        history.append(values(model))
    return outer, history


def equal_on_ranks(histories: list[Any], step: int) -> bool:
    return all(same(history[step - 1], histories[0][step - 1]) for history in histories)


def close(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


# --- LocalSGD ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 4])
def test_synchronising_in_every_step_is_data_parallelism(world):
    """Bit for bit: all numbers are multiples of powers of two, and float64 holds two steps of them exactly."""

    def train(comm, wrap):
        model = chain(dtype=torch.float64)
        optimizer = SGD(model.parameters(), lr=1 / 8)
        wrapped, outer = model, None
        if wrap:
            wrapped = ringreduce.DataParallel(model, comm, **TINY)
        else:
            outer = LocalSGD(model.parameters(), comm, every=1)
        for step in range(2):
            optimizer.zero_grad()
            wrapped(batch(comm.rank, step, torch.float64)).sum().backward()
            optimizer.step()
            if outer is not None:
                outer.step()
        return values(model)

    expected = on_ranks(world, train, True)
    for ours, theirs in zip(on_ranks(world, train, False), expected, strict=True):
        assert same(ours, theirs)


def test_parameters_are_averaged_every_third_step():
    models = [chain(dtype=torch.float64) for _ in range(3)]
    optimizers = [SGD(model.parameters(), lr=0.01, momentum=0.9) for model in models]
    expected = []
    for step in range(7):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            local_step(model, optimizer, rank, step)
        if step % 3 == 2:
            with torch.no_grad():
                for places in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack(places).mean(0)
                    for place in places:
                        place.copy_(mean)
        expected.append([values(model) for model in models])

    inner = partial(SGD, momentum=0.9)
    found = on_ranks(3, train, METHODS["local_sgd"], 7, inner, torch.float64)
    for rank, (_, history) in enumerate(found):
        for step in range(7):
            close(history[step], expected[step][rank])


def test_post_local_sgd_synchronises_in_each_of_the_first_steps():
    histories = [history for _, history in on_ranks(2, train, METHODS["post_local"], 9)]
    assert [equal_on_ranks(histories, step) for step in range(1, 10)] == [
        True, True, False, False, True, False, False, True, False,
    ]  # fmt: skip


def test_torchs_periodic_averager_gives_the_same(tmp_path):
    def train(comm):
        import torch.distributed as dist
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        torch.set_num_threads(1)
        dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=comm.rank, world_size=comm.size)
        ours, theirs = chain(dtype=torch.float64), chain(dtype=torch.float64)
        optimizers = [SGD(model.parameters(), lr=0.01, momentum=0.9) for model in (ours, theirs)]
        outer = LocalSGD(ours.parameters(), comm, every=3)
        averager = PeriodicModelAverager(period=3, warmup_steps=2)
        for step in range(8):
            for model, optimizer in zip((ours, theirs), optimizers, strict=True):
                local_step(model, optimizer, comm.rank, step)
            outer.step()
            averager.average_parameters(theirs.parameters())
        dist.destroy_process_group()
        return [one.numpy() for one in values(ours)], [one.numpy() for one in values(theirs)]

    for ours, theirs in ringreduce.run(train, 2, timeout=100):
        close([torch.from_numpy(one) for one in ours], [torch.from_numpy(one) for one in theirs])


# --- DiLoCo --------------------------------------------------------------------------------------------------


def test_outer_sgd_with_rate_1_averages_parameters():
    def train(comm, make):
        model = chain(dtype=torch.float64)
        optimizer = SGD(model.parameters(), lr=1 / 8)
        outer = make(model.parameters(), comm)
        for step in range(2):
            optimizer.zero_grad()
            model(batch(comm.rank, step, torch.float64)).sum().backward()
            optimizer.step()
            outer.step()
        return values(model)

    averaged = on_ranks(2, train, lambda p, comm: LocalSGD(p, comm, every=2))
    outer = on_ranks(2, train, lambda p, comm: DiLoCo(p, comm, every=2, lr=1, momentum=0))
    assert same(outer[0], averaged[0])
    assert same(outer[1], averaged[0])


def pseudocode(
    ranks: int, steps: int, every: int, groups: list[list[int]], overlap: int, mixing: float
) -> Any:
    """Streaming DiLoCo, of which DiLoCo is a case. Returns [steps][ranks] parameters, computed by one process."""
    models = [chain(dtype=torch.float64) for _ in range(ranks)]
    optimizers = [AdamW(model.parameters(), lr=0.01) for model in models]
    theta = values(models[0])
    momenta = [torch.zeros_like(one) for one in theta]
    deltas: dict[int, list[Any]] = {}
    history = []
    for step in range(1, steps + 1):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            local_step(model, optimizer, rank, step - 1)
        with torch.no_grad():
            for p, group in enumerate(groups):
                first = p * every // len(groups)
                if step >= first and (step - first) % every == 0:
                    deltas[p] = [
                        sum(theta[k] - list(model.parameters())[k] for model in models) / ranks for k in group
                    ]
                if p in deltas and (step - first - overlap) % every == 0:
                    for k, delta in zip(group, deltas.pop(p), strict=True):
                        momenta[k] = 0.9 * momenta[k] + delta
                        theta[k] = theta[k] - 0.7 * (delta + 0.9 * momenta[k])
                        for model in models:
                            own = list(model.parameters())[k]
                            own.copy_(mixing * own + (1 - mixing) * theta[k])
        history.append([values(model) for model in models])
    return history


def test_diloco_follows_its_pseudocode():
    expected = pseudocode(2, 10, 3, [[*range(6)]], overlap=0, mixing=0.0)
    for rank, (_, history) in enumerate(on_ranks(2, train, METHODS["diloco"], 10, AdamW, torch.float64)):
        for step in range(10):
            close(history[step], expected[step][rank])


def test_streaming_diloco_follows_its_pseudocode():
    groups = [[0, 3], [1, 4], [2, 5]]  # strides
    expected = pseudocode(2, 14, 4, groups, overlap=2, mixing=0.25)

    def make(parameters, comm):
        parameters = list(parameters)
        return StreamingDiLoCo(
            parameters, comm, **{**STREAMING, "fragments": [[parameters[k] for k in g] for g in groups]}
        )

    for rank, (_, history) in enumerate(on_ranks(2, train, make, 14, AdamW, torch.float64)):
        for step in range(14):
            close(history[step], expected[step][rank])


def test_one_fragment_without_overlap_is_diloco():
    one = on_ranks(2, train, METHODS["diloco"], 7)
    other = on_ranks(2, train, lambda p, comm: StreamingDiLoCo(p, comm, every=3, fragments=1, overlap=0), 7)
    for (_, ours), (_, theirs) in zip(one, other, strict=True):
        assert all(itertools.starmap(same, zip(ours, theirs, strict=True)))


def test_fragments_have_about_the_same_size():
    assert cut([4, 1, 1, 1, 1, 4], 3) == [[0], [1, 2, 3, 4], [5]]
    assert cut([100, 1, 1, 1], 3) == [[0], [1], [2, 3]]
    assert cut([1, 1, 1, 100], 3) == [[0], [1], [2, 3]] or cut([1, 1, 1, 100], 3) == [[0, 1], [2], [3]]
    assert cut([5] * 8, 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(ValueError, match="fragments must be from 1 to the 2 parameters, not 3"):
        cut([1, 1], 3)


# --- all of them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [None, "bf16", "int8"])
@pytest.mark.parametrize("method", [DiLoCo, LocalSGD, StreamingDiLoCo])
def test_ranks_have_the_same_parameters_after_each_synchronisation(method, wire):
    more = {} if method is LocalSGD else {"wire": wire}
    if method is StreamingDiLoCo:
        more |= {"fragments": 2, "overlap": 0}
    histories = [
        history for _, history in on_ranks(3, train, lambda p, comm: method(p, comm, every=4, **more), 9)
    ]
    if method is StreamingDiLoCo:  # the first half in steps 4 and 8, the second in steps 2 and 6
        halves = cut([one.numel() for one in histories[0][0]], 2)
        for step, half in ((4, 0), (8, 0), (2, 1), (6, 1)):
            parts = [[history[step - 1][place] for place in halves[half]] for history in histories]
            assert same(parts[0], parts[1]) and same(parts[0], parts[2])
        return
    assert [step for step in range(1, 10) if equal_on_ranks(histories, step)] == [4, 8]


@ALL
def test_all_begin_with_the_parameters_of_rank_0(method):
    def begin(comm):
        model = chain(seed=comm.rank)
        METHODS[method](model.parameters(), comm)
        return values(model)

    assert same(on_ranks(2, begin)[1], values(chain(seed=0)))


@ALL
@pytest.mark.parametrize("stop", [1, 5, 6])  # 5 and 6: fragments are under way
def test_a_resumed_run_equals_an_undisturbed_one(method, stop):
    def interrupted(comm):
        model = chain()
        optimizer, outer = AdamW(model.parameters(), lr=0.01), METHODS[method](model.parameters(), comm)
        for step in range(11):
            if step == stop:
                file = io.BytesIO()
                torch.save([model.state_dict(), optimizer.state_dict(), outer.state_dict()], file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                model = chain(seed=5)
                optimizer, outer = (
                    AdamW(model.parameters(), lr=0.01),
                    METHODS[method](model.parameters(), comm),
                )
                for part, state in zip((model, optimizer, outer), saved, strict=True):
                    part.load_state_dict(state)
            local_step(model, optimizer, comm.rank, step)
            outer.step()
        return values(model), outer.steps

    undisturbed = on_ranks(2, train, METHODS[method], 11)
    for (found, steps), (_, history) in zip(on_ranks(2, interrupted), undisturbed, strict=True):
        assert steps == 11
        assert same(found, history[-1])


@ALL
def test_saving_does_not_disturb(method):
    def saving(comm):
        model = chain()
        optimizer, outer = AdamW(model.parameters(), lr=0.01), METHODS[method](model.parameters(), comm)
        for step in range(9):
            local_step(model, optimizer, comm.rank, step)
            outer.step()
            outer.state_dict()
        return values(model)

    for found, (_, history) in zip(on_ranks(2, saving), on_ranks(2, train, METHODS[method], 9), strict=True):
        assert same(found, history[-1])


@ALL
def test_the_common_model_is_the_same_on_all_ranks(method):
    def look(comm):
        model = chain()
        optimizer, outer = AdamW(model.parameters(), lr=0.01), METHODS[method](model.parameters(), comm)
        for step in range(7):
            local_step(model, optimizer, comm.rank, step)
            outer.step()
        before = values(model)
        with outer.common():
            common = values(model)
        return before, common, values(model)

    first, second = on_ranks(2, look)
    assert same(first[1], second[1])
    assert not same(first[0], second[0])
    for before, _, after in (first, second):
        assert same(before, after)


def test_bytes_are_counted():
    count = sum(one.numel() for one in chain().parameters())
    for method, more, expected in (
        (LocalSGD, {}, 3 * 4 * count),
        (DiLoCo, {}, 3 * 4 * count),
        (DiLoCo, {"wire": "bf16"}, 3 * 2 * count),
        (StreamingDiLoCo, {"fragments": 2, "overlap": 0}, 3 * 4 * count),
    ):
        found = on_ranks(2, train, lambda p, comm, m=method, o=more: m(p, comm, every=2, **o), 6)
        assert [outer.bytes_sent for outer, _ in found] == [expected, expected], (method, more)

    def large(comm):
        parameters = [torch.nn.Parameter(torch.zeros(4096))]
        outers = [DiLoCo(parameters, comm, every=1, wire=wire) for wire in (None, "int8")]
        for outer in outers:
            outer.step()
        return [outer.bytes_sent for outer in outers]

    full, narrow = on_ranks(2, large)[0]
    assert full / 4 <= narrow < full / 3.9


def test_16_bit_parameters_have_anchors_of_32_bits():
    def train(comm):
        parameter = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
        outer = DiLoCo([parameter], comm, every=1, lr=2**-10, momentum=0)
        for _ in range(64):  # each step is too small for bfloat16, whose next number below 1 is 1 - 2**-8
            with torch.no_grad():
                parameter.sub_(2**-2 * (1 + comm.rank))
            outer.step()
        return parameter.tolist()

    first, second = on_ranks(2, train)
    assert first == second
    assert 0.9 < first[0] < 1


# --- slower ranks --------------------------------------------------------------------------------------------


def test_slower_ranks_make_fewer_steps():
    pace = Pace(4, every=30, adaptive=True)
    pace.next_round([1.0, 1.05, 1.0, 3.0])
    assert pace.steps == [30, 30, 30, 10]
    assert [pace.weight(rank) for rank in range(4)] == [1.2, 1.2, 1.2, 0.4]
    pace.next_round([1.0, 1.0, 1.0, 100.0])
    assert pace.steps == [30, 30, 30, 1]
    pace.next_round([1.0, 1.0, 1.0, 1.0])
    assert pace.steps == [30] * 4
    fixed = Pace(2, every=30, adaptive=False)
    fixed.next_round([1.0, 3.0])
    assert fixed.steps == [30, 30]


def test_noise_does_not_change_the_steps():
    pace = Pace(3, every=100, adaptive=True)
    pace.next_round([1.0, 2.0, 1.0])
    draw = torch.Generator().manual_seed(0)
    for _ in range(50):
        noise = 1 + 0.08 * torch.rand(3, generator=draw)
        pace.next_round((torch.tensor([1.0, 2.0, 1.0]) * noise).tolist())
        assert pace.steps == [100, 50, 100]


@pytest.mark.parametrize("method", [LocalSGD, DiLoCo])
def test_ranks_count_in_proportion_to_their_steps(method):
    more = {"lr": 1, "momentum": 0} if method is DiLoCo else {}

    def train(comm):
        parameter = torch.nn.Parameter(torch.zeros(3))
        outer = method([parameter], comm, every=3, adaptive=True, **more)
        outer._pace.steps = [3, 1]
        done = 0
        for _ in range(3):
            if not outer.idle:
                done += 1
                with torch.no_grad():
                    parameter.add_(4)
            outer.step()
        return done, parameter.tolist()

    # 3/4 of 12, and 1/4 of 4
    assert on_ranks(2, train) == [(3, [10.0] * 3), (1, [10.0] * 3)]


@pytest.mark.parametrize("method", [LocalSGD, DiLoCo])
def test_a_rank_that_is_slowed_makes_fewer_steps_in_the_next_round(method):
    def train(comm):
        outer = method([torch.nn.Parameter(torch.zeros(3))], comm, every=8, adaptive=True)
        made = []
        for _ in range(3):
            made.append(0)
            for _ in range(8):
                if not outer.idle:
                    time.sleep(0.04 if comm.rank else 0.001)
                    made[-1] += 1
                outer.step()
        return made

    fast, slow = on_ranks(2, train)
    assert fast == [8, 8, 8]
    assert slow[0] == 8
    assert max(slow[1:]) < 8


def test_steps_that_adapted_are_saved():
    pace, same_size, other_size, fixed = (
        Pace(2, 8, True),
        Pace(2, 8, True),
        Pace(3, 8, True),
        Pace(2, 8, False),
    )
    pace.next_round([1.0, 2.0])
    for other in (same_size, other_size, fixed):
        other.load_state_dict(pace.state_dict())
    assert [same_size.steps, other_size.steps, fixed.steps] == [[8, 4], [8, 8, 8], [8, 8]]


# --- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p, c: LocalSGD(p, c, every=0), "every must be at least 1, not 0"),
        (lambda p, c: LocalSGD(p, c, start=-1), "start must be at least 0, not -1"),
        (lambda p, c: LocalSGD([], c), "parameters: none of them needs a gradient"),
        (lambda p, c: DiLoCo(p, c, every=-5), "every must be at least 1, not -5"),
        (lambda p, c: DiLoCo(p, c, wire="int4"), "wire must be one of"),
        (lambda p, c: DiLoCo(p, c, momentum=-1), "momentum"),
        (lambda p, c: StreamingDiLoCo(p, c, every=4, overlap=4), "overlap must be from 0 to 3, not 4"),
        (lambda p, c: StreamingDiLoCo(p, c, mixing=1.5), "mixing must be from 0 to 1, not 1.5"),
        (
            lambda p, c: StreamingDiLoCo(p, c, fragments=0),
            "fragments must be from 1 to the 6 parameters, not 0",
        ),
        (lambda p, c: StreamingDiLoCo(p, c, fragments=[p[:5]]), "must hold each of the parameters once"),
        (lambda p, c: StreamingDiLoCo(p, c, fragments=[p, p[:1]]), "must hold each of the parameters once"),
        (lambda p, c: StreamingDiLoCo(p, c, fragments=[p, []]), "fragments must not be empty"),
    ],
)
def test_bad_arguments_are_named(make, text):
    def refuse(comm):
        with pytest.raises(ValueError, match=text):
            make(list(chain().parameters()), comm)

    on_ranks(2, refuse)


@ALL
def test_ranks_with_other_arguments_are_named(method):
    def refuse(comm):
        kind = {"diloco": DiLoCo, "streaming": StreamingDiLoCo}.get(method, LocalSGD)
        with pytest.raises(
            ringreduce.Error, match=r"The first difference: rank 0: every: 5; rank 1: every: 6"
        ):
            kind(chain().parameters(), comm, every=5 + comm.rank)

    on_ranks(2, refuse)


@ALL
def test_ranks_that_synchronise_after_other_numbers_of_steps_are_told(method):
    def refuse(comm):
        outer = METHODS[method](chain().parameters(), comm)
        outer.steps += 12 * comm.rank
        with pytest.raises(
            ringreduce.Error, match=r"different numbers of steps: \d+ on rank 0, \d+ on rank 1"
        ):
            for _ in range(9):
                outer.step()

    on_ranks(2, refuse)


def test_states_of_others_are_refused():
    def refuse(comm):
        diloco, local = DiLoCo(chain().parameters(), comm), LocalSGD(chain().parameters(), comm)
        with pytest.raises(ValueError, match="saved is the state of LocalSGD, not of DiLoCo"):
            diloco.load_state_dict(local.state_dict())
        small = DiLoCo(torch.nn.Linear(2, 2).parameters(), comm)
        with pytest.raises(
            ValueError, match=r"parameter 0 of a fragment has the shape \(2, 2\) in it, and \(6, 4\)"
        ):
            diloco.load_state_dict(small.state_dict())
        three, two = (StreamingDiLoCo(chain().parameters(), comm, fragments=count) for count in (3, 2))
        with pytest.raises(ValueError, match="saved has 2 fragments, not 3"):
            three.load_state_dict(two.state_dict())

    on_ranks(1, refuse)


@ALL
def test_a_state_continues_on_another_number_of_ranks(method):
    def save(comm):
        return train(comm, METHODS[method], 5)[0].state_dict()

    saved = on_ranks(2, save)[0]

    def resume(comm):
        model = chain()
        outer = METHODS[method](model.parameters(), comm)
        outer.load_state_dict(saved)
        optimizer = SGD(model.parameters(), lr=0.01)
        for step in range(5, 12):
            local_step(model, optimizer, comm.rank, step)
            outer.step()
        with outer.common():
            return outer.steps, values(model)

    found = on_ranks(3, resume)
    assert {steps for steps, _ in found} == {12}
    assert all(same(parameters, found[0][1]) for _, parameters in found)


# --- other ranks ---------------------------------------------------------------------------------------------


def one_fragment(comm: Any, steps: int = 0) -> tuple[Any, Any]:
    """Returns a function that makes a step of a length, and the outer optimizer, after steps of length rank + 1."""
    weight = torch.nn.Parameter(torch.zeros(5))
    outer = StreamingDiLoCo([weight], comm, every=4, overlap=3, fragments=1, lr=1.0, momentum=0.0, mixing=0.0)

    def step(length: float = 1.0) -> float:
        with torch.no_grad():
            weight.sub_(length)
        outer.step()
        assert weight.eq(weight[0]).all()
        return weight[0].item()

    for _ in range(steps):
        step(comm.rank + 1)
    return step, outer


@pytest.mark.parametrize(
    ("leave", "newcomers", "after"),
    [((), 1, -8), ((1,), 0, -8), ((1,), 1, -8), ((0, 1), 1, -12), ((0, 1), 2, -12), ((0, 1, 2), 1, -2)],
)
def test_what_is_under_way_is_sent_again(leave, newcomers, after):
    """Three ranks have sent 4, 8 and 12 in step 4. After step 5 some leave, and others come that have sent nothing."""

    def run(comm):
        own = comm.split(0 if comm.rank < 3 else None) or ringreduce.local_group(1)[0]
        kept = comm.split(None if comm.rank in leave else 0)
        step, outer = one_fragment(own, steps=5 if comm.rank < 3 else 0)
        state = comm.broadcast_object(outer.common_state())
        if kept is None:
            return None
        if comm.rank >= 3:
            outer.load_state_dict(state)
        outer.regroup(kept)
        return step(), step()

    found = [each for each in on_ranks(3 + newcomers, run) if each]
    assert found == [(-1, after)] * (3 + newcomers - len(leave))


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_any_number_of_ranks_takes_over_what_was_sent(world):
    saved = on_ranks(3, lambda comm: one_fragment(comm, steps=5)[1])
    state, sent = saved[0].common_state(), [outer.sent for outer in saved]

    def run(comm):
        step, outer = one_fragment(comm)
        outer.load_state_dict(state)
        outer.take(sent)
        outer.regroup(comm)
        return step(), step()

    assert on_ranks(world, run) == [(-1, pytest.approx(-8))] * world

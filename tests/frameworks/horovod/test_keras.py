"""Horovod's tapes, optimizers and callbacks: training is that of one process with all ranks' samples."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import on_ranks_of_a_command

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

import keras
import tensorflow as tf

import ringreduce.horovod.keras as hvdk
import ringreduce.horovod.tensorflow as hvd
from tests.frameworks.horovod.ranks import on_ranks

ROOT = Path(__file__).resolve().parents[3]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 6)).astype("float32")
Y = (X.sum(1, keepdims=True) ** 2).astype("float32")


def mine(x):
    """This rank's halves of batches of 8."""
    size = hvd.size()
    return np.concatenate([batch[hvd.rank() * 8 // size :][: 8 // size] for batch in np.split(x, 4)])


def model_of(*makers):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((6,)), *[make() for make in makers], keras.layers.Dense(1)])


def taped(how, compiled):
    model = model_of(lambda: keras.layers.Dense(5))
    optimizer = keras.optimizers.SGD(0.05)
    options = {
        "predivide": {"gradient_predivide_factor": 2.0},
        "groups": {"num_groups": 2},
        "sum": {"op": hvd.Sum},
    }

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2) / (hvd.size() if how == "sum" else 1)
        distributed = hvd.DistributedGradientTape(tape, **options.get(how, {}))
        optimizer.apply(distributed.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    optimizer.build(model.trainable_variables)
    step = tf.function(step) if compiled else step
    for x, y in zip(np.split(mine(X), 4), np.split(mine(Y), 4), strict=True):
        step(x, y)
    return [weight.tolist() for weight in model.get_weights()]


@pytest.mark.parametrize(
    ("how", "compiled"), [("plain", True), ("predivide", False), ("groups", True), ("sum", False)]
)
def test_tape_trains_as_one_process_does(how, compiled):
    (alone,) = on_ranks(1, taped, how, compiled)
    first, second = on_ranks(2, taped, how, compiled)
    assert first == second
    for one, same in zip(first, alone, strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-4, atol=1e-6)


def special_tapes():
    table = tf.Variable(tf.zeros([4, 2]))
    local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    local.build((None, 2))
    rank = hvd.rank()
    found = []
    for dense in (False, True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, 3])) * (rank + 1)
        gradient = hvd.DistributedGradientTape(tape, sparse_as_dense=dense).gradient(loss, table)
        found.append(
            (isinstance(gradient, tf.IndexedSlices), tf.convert_to_tensor(gradient).numpy().tolist())
        )
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(local(tf.gather(table, [0]) + rank + 1.0)) + tf.reduce_sum(table) * (rank + 1)
    partial = hvd.PartialDistributedGradientTape(tape, local_layers=local)
    own, common = partial.gradient(loss, [local.kernel.value, table])
    return found, own.numpy().tolist(), float(tf.reduce_sum(common))


def test_sparse_and_local_gradients():
    wanted = [[0.5, 0.5], [1.0, 1.0], [0.0, 0.0], [1.5, 1.5]]
    for rank, (found, own, common) in enumerate(on_ranks(2, special_tapes)):
        assert found == [(True, wanted), (False, wanted)]
        assert own == [[(rank + 1) / 2]] * 2  # divided by the number of ranks, and not exchanged
        assert common == 8 * 1.5 + 2


def fitted_in_a_set():
    """Ranks 0 and 1 train together on halves of each batch, and rank 2 alone on the whole ones."""
    own = hvd.add_process_set([0, 1])
    alone = not own.included()
    share = slice(None) if alone else slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    x, y = (np.concatenate([batch[share] for batch in np.split(data, 4)]) for data in (X, Y))
    model = model_of(
        lambda: keras.layers.Dense(5, activation="relu"), lambda: hvd.SyncBatchNormalization(process_set=own)
    )
    optimizer = hvdk.DistributedOptimizer(keras.optimizers.SGD(0.05), process_set=own)
    model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
    callbacks = [hvdk.callbacks.MetricAverageCallback(process_set=own)]
    batch = 8 if alone else 4
    history = model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    return history.history, [weight.tolist() for weight in model.get_weights()]


def test_ranks_outside_a_process_set_train_alone():
    (logs, weights), second, (own_logs, own_weights) = on_ranks(3, fitted_in_a_set, sets="dynamic")
    assert second == (logs, weights)
    for name in logs:
        np.testing.assert_allclose(logs[name], own_logs[name], rtol=1e-3)
    for one, other in zip(weights, own_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def fitted(how):
    layers = [lambda: keras.layers.Dense(5, activation="relu")]
    if how == "norm":
        layers += [hvd.SyncBatchNormalization]
    model = model_of(*layers)
    if how == "broadcast" and hvd.rank():
        model.set_weights([weight + 1 for weight in model.get_weights()])
    passes = 2 if how == "passes" and hvd.size() == 2 else 1
    options = {"passes": {"backward_passes_per_step": passes, "average_aggregated_gradients": True}}
    optimizer = hvdk.DistributedOptimizer(keras.optimizers.Adam(0.05), **options.get(how, {}))
    assert isinstance(optimizer, keras.optimizers.Adam)
    model.compile(optimizer, "mse", metrics=["mae"])
    callbacks = [hvdk.callbacks.BroadcastGlobalVariablesCallback(0), hvdk.callbacks.MetricAverageCallback()]
    x, y, batch = mine(X), mine(Y), 8 // hvd.size()
    if how == "passes" and hvd.size() == 2:
        batch //= 2  # two passes of half the samples
    history = model.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    return model.jit_compile, history.history, [weight.tolist() for weight in model.get_weights()]


@pytest.mark.parametrize("how", ["broadcast", "passes", "norm"])
def test_fit_trains_as_one_process_does(how):
    ((_, wanted, alone),) = on_ranks(1, fitted, how)
    first, second = on_ranks(2, fitted, how)
    assert first == second
    compiled, history, weights = first
    assert compiled is False
    if how != "passes":  # there, the losses of the second pass are those before the step
        assert history["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
        assert history["mae"] == pytest.approx(wanted["mae"], rel=1e-3)
    for one, same in zip(weights, alone, strict=True):
        np.testing.assert_allclose(one, same, rtol=2e-3, atol=1e-4)


def halves():
    """One rank's gradients overflow in the first steps: either all ranks make such a step, or none does."""
    keras.config.set_dtype_policy("mixed_float16")
    model = model_of(lambda: keras.layers.Dense(5))
    model.compile(hvdk.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x, y = mine(X), mine(Y) * (1000 if hvd.rank() else 1)
    model.fit(x, y, batch_size=4, epochs=3, verbose=0, shuffle=False)
    scaling = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    scale = float(model.optimizer.dynamic_scale)
    return scaling, scale < 2**15, scale, [weight.tolist() for weight in model.get_weights()]


def test_loss_scaling_is_the_same_on_all_ranks():
    first, second = on_ranks(2, halves)
    assert first == second
    assert first[:2] == (True, True)


def rates(momentum):
    model = model_of()
    optimizer = hvdk.DistributedOptimizer(keras.optimizers.SGD(0.4, momentum=momentum))
    model.compile(optimizer, "mse")
    seen = []
    callbacks = [
        hvdk.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1),
        hvdk.callbacks.LearningRateScheduleCallback(
            0.4, lambda epoch: 0.1 ** (epoch - 1), start_epoch=2, end_epoch=4
        ),
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(round(float(optimizer.learning_rate), 5))
        ),
    ]
    history = model.fit(X[:4], Y[:4], batch_size=2, epochs=5, verbose=0, callbacks=callbacks)
    return seen, [round(rate, 5) for rate in history.history["lr"]]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_learning_rates(momentum):
    for seen, epochs in on_ranks(2, rates, momentum):
        # From 0.2 to 0.4 in four batches; then 0.4 times 0.1 and 0.01, which stays.
        assert seen == [0.25, 0.3, 0.35, 0.4, 0.04, 0.04, 0.004, 0.004, 0.004, 0.004]
        assert epochs == [0.3, 0.4, 0.04, 0.004, 0.004]


def momentum_kept():
    """A change of the rate scales the steps that the optimizer keeps."""
    model = model_of()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    for step in model.optimizer.momentums:
        step.assign(tf.ones_like(step.value))
    callback = hvdk.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    callback.on_train_batch_begin(0)
    return [float(tf.reduce_mean(step.value)) for step in model.optimizer.momentums]


def test_momentum_correction():
    assert on_ranks(1, momentum_kept) == [pytest.approx([0.5, 0.5])]


def saved(folder):
    path = f"{folder}/model-{hvd.rank()}.keras"
    model = model_of()
    model.compile(hvdk.DistributedOptimizer(keras.optimizers.Adam(0.05)), "mse")
    best = hvdk.callbacks.BestModelCheckpoint(monitor="loss", filepath=f"{folder}/best-{hvd.rank()}.keras")
    model.fit(mine(X), mine(Y), batch_size=4, epochs=1, verbose=0, callbacks=[best])
    model.save(path)
    plain = keras.saving.load_model(path)
    again = hvdk.load_model(path)
    same = all(
        np.array_equal(one, other)
        for one, other in zip(model.get_weights(), again.get_weights(), strict=True)
    )
    iterations = int(again.optimizer.iterations)
    again.fit(mine(X), mine(Y), batch_size=4, epochs=1, verbose=0)
    values = [
        hvdk.allreduce(float(hvd.rank())),
        hvdk.allgather([hvd.rank()]).tolist(),
        hvdk.broadcast(hvd.rank(), 1),
    ]
    return (
        same, iterations, type(plain.optimizer) is keras.optimizers.Adam, os.path.exists(best.filepath),
        [float(one) if np.ndim(one) == 0 else one for one in values], [w.tolist() for w in again.get_weights()],
    )  # fmt: skip


def test_saved_models_keep_the_optimizer(tmp_path):
    first, second = on_ranks(2, saved, str(tmp_path))
    assert first == second
    assert first[:5] == (True, 4, True, True, [0.5, [0, 1], 1.0])


def misuse():
    found = []
    for call in (
        lambda: hvdk.DistributedOptimizer("adam"),
        lambda: hvdk.DistributedOptimizer(hvdk.DistributedOptimizer(keras.optimizers.SGD())),
        lambda: hvdk.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0),
        lambda: hvdk.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0),
        lambda: hvd.broadcast_global_variables(0),
    ):
        try:
            call()
        except (TypeError, ValueError, RuntimeError) as error:
            found.append(str(error))
    return found


def test_misuse_is_named():
    ((kind, twice, passes, divides, variables),) = on_ranks(1, misuse)
    assert "optimizer of Keras 3, not str" in kind
    assert "DistributedOptimizer already" in twice
    assert "backward_passes_per_step must be at least 1" in passes
    assert "needs op=Average" in divides
    assert "hvd.broadcast_variables" in variables


NAMES = """
import horovod.tensorflow as hvd, horovod.keras as hvdk, horovod.tensorflow.keras as other, sys
import ringreduce.horovod.tensorflow as ours, ringreduce.horovod.keras as ours_too
from horovod.tensorflow.keras.callbacks import MetricAverageCallback
from horovod.tensorflow.mpi_ops import allgather
assert hvd is ours and hvdk is ours_too and other is ours_too and "torch" not in sys.modules
assert MetricAverageCallback is hvdk.callbacks.MetricAverageCallback and allgather is hvd.allgather
hvd.init()
sys.stdout.write(f"{hvdk.size()} {other.rank()}\\n")
"""


def ran(*words):
    return on_ranks_of_a_command("--as-horovod", *words, timeout=200, TF_CPP_MIN_LOG_LEVEL="3")


def test_names_lead_to_the_same_modules():
    done = ran("-n", 2, sys.executable, "-c", NAMES)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["2 0", "2 1"]


def test_an_unchanged_program():
    """With one rank and with two, the same batches give the same losses."""
    program = ROOT / "examples/horovod_keras.py"
    assert len(program.read_text().splitlines()) <= 60
    assert "ringreduce" not in program.read_text().split('"""')[2]
    losses = []
    for ranks in (1, 2):
        done = ran("-n", ranks, sys.executable, program)
        assert done.returncode == 0, done.stderr
        losses.append([float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if "loss" in line])
    assert len(losses[0]) == 5
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)

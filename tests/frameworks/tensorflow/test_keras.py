"""Keras on several ranks: losses, metrics and weights are those of one process with the same global batches."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

import keras
import tensorflow as tf

import ringreduce
import ringreduce.tensorflow.keras as rk

SAMPLES = 54  # the last batch is smaller, and does not divide evenly


def data(samples=SAMPLES):
    x = np.random.default_rng(0).normal(size=(samples, 6)).astype("float32")
    return x, x.sum(1, keepdims=True) ** 2


def model_of(optimizer="adam", norm=False, **compiled):
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(8, activation="relu", kernel_regularizer="l2"),
        *([keras.layers.BatchNormalization()] if norm else []),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()], **compiled)
    return model


def trained(model, samples=SAMPLES, others=9):
    x, y = data(samples)
    validation = x[:others], y[:others]
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False, validation_data=validation)
    return history.history, [weight.tolist() for weight in model.get_weights()]


def on_rank(comm, kind):
    model = model_of("sgd" if kind == "run_eagerly" else "adam", run_eagerly=kind == "run_eagerly")
    if comm.rank:
        for weight in model.weights:
            weight.assign(weight + 1)  # rank 0's count
    rk.data_parallel(model, comm=comm)
    return trained(model)


@pytest.mark.parametrize(("ranks", "kind"), [(2, "graph"), (3, "run_eagerly")])
def test_training_equals_one_process(ranks, kind):
    (wanted, weights), *_ = ringreduce.run(lambda comm: trained(model_of("sgd" if ranks == 3 else "adam")), 1)
    everybody = ringreduce.run(on_rank, ranks, kind)
    for history, own in everybody:
        assert history.keys() == wanted.keys()
        for name, values in wanted.items():
            assert history[name] == pytest.approx(values, rel=1e-4), name
        for one, same in zip(own, weights, strict=True):
            np.testing.assert_allclose(one, same, rtol=1e-3, atol=1e-5)
    assert all(own == everybody[0][1] for _, own in everybody)  # mirrored: the same bits


def mirrored(comm):
    """MirroredStrategy, with as many replicas on logical devices of one process, without XLA as here."""
    devices = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(devices[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = model_of(jit_compile=False)
    assert strategy.num_replicas_in_sync == 2
    return trained(model, 48, 8)


def ours(comm):
    return trained(rk.data_parallel(model_of(), comm=comm), 48, 8)


def test_losses_are_those_of_mirrored_strategy():
    ((wanted, weights),) = ringreduce.run(mirrored, 1)
    for history, own in ringreduce.run(ours, 2):
        assert history["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
        for one, same in zip(own, weights, strict=True):
            np.testing.assert_allclose(one, same, rtol=1e-3, atol=1e-5)


def other_ways(comm):
    """Moving statistics, shuffling, data of one's own, a tf.data.Dataset, and what does not change."""
    found = {}
    model = rk.data_parallel(model_of(norm=True), comm=comm)
    x, y = data()
    found["shuffled"] = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"]
    found["weights"] = [weight.tolist() for weight in model.get_weights()]
    found["evaluated"] = model.evaluate(x, y, batch_size=20, verbose=0)
    found["compiled"] = model.jit_compile
    path = f"/tmp/ringreduce-test-{os.getpid()}.keras"
    model.save(path)
    again = keras.saving.load_model(path)
    os.remove(path)
    found["loaded"] = bool(np.allclose(again.predict(x, verbose=0), model.predict(x, verbose=0)))
    own = rk.data_parallel(model_of("sgd"), comm=comm, split=False)
    begin, end = ((0, 8), (8, 12))[comm.rank]  # in batches of different lengths
    dataset = tf.data.Dataset.from_tensor_slices((x[begin:end], y[begin:end])).batch(end - begin)
    found["own"] = own.fit(dataset, epochs=3, verbose=0).history["loss"]
    return found


def test_other_ways_to_train():
    ((alone, _),) = ringreduce.run(lambda comm: _twelve(), 1)
    first, second = ringreduce.run(other_ways, 2)
    assert first == second
    assert first["shuffled"][1] < first["shuffled"][0]
    assert first["compiled"] is False
    assert first["loaded"]
    assert first["own"] == pytest.approx(alone["loss"], rel=1e-4)


def _twelve():
    x, y = data()
    model = model_of("sgd")
    return model.fit(x[:12], y[:12], batch_size=12, epochs=3, verbose=0, shuffle=False).history, None


def mistakes(comm):
    found = []
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    for call in (
        lambda: rk.data_parallel(3, comm=comm),
        lambda: rk.data_parallel(plain, comm=comm),
        lambda: rk.data_parallel(unbuilt, comm=comm),
        lambda: rk.data_parallel(model_of(), comm=3),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def test_mistakes():
    ((kind, compiled, built, comm),) = ringreduce.run(mistakes, 1)
    assert kind == "TypeError: model must be a keras.Model, not int"
    assert "compile the model first" in compiled
    assert "build the model first" in built
    assert "comm must be" in comm

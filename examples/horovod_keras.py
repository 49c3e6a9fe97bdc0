"""A training program for Horovod and Keras, which runs unchanged over ringreduce.

ringreduce run -n 2 --as-horovod python examples/horovod_keras.py
"""

import horovod.keras as hvd
import keras
import numpy as np

EPOCHS, BATCH, BATCHES, WIDTH = 5, 24, 20, 32


def main() -> None:
    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # the broadcast makes the models equal

    x = np.random.default_rng(1).normal(size=(BATCHES, hvd.size(), BATCH // hvd.size(), WIDTH))
    x = x[:, hvd.rank()].reshape(-1, WIDTH).astype("float32")  # this rank's part of each batch
    y = np.sin(x).sum(1, keepdims=True)

    layers = [keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
    model.compile(optimizer, "mse")

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    batch = BATCH // hvd.size()
    history = model.fit(x, y, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    if hvd.rank() == 0:
        for epoch, loss in enumerate(history.history["loss"]):
            print(f"epoch {epoch}: loss {loss:.5f}", flush=True)


if __name__ == "__main__":
    main()

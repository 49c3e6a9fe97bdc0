"""Data parallelism in Keras: every rank has the whole model, and trains it on its part of each batch.

ringreduce run -n 2 python examples/keras_data_parallel.py
"""

import argparse

import keras
import numpy as np

import ringreduce
import ringreduce.tensorflow.keras as rk

WIDTH = 32


def make_model():
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(4 * WIDTH, activation="gelu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=48, help="samples per step, over all ranks")
    options = parser.parse_args()
    comm = ringreduce.init()
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(480, WIDTH)).astype("float32")
    y = np.sin(x).sum(1, keepdims=True)
    model = rk.data_parallel(make_model())  # every rank gets rank 0's weights
    history = model.fit(x, y, batch_size=options.batch, epochs=options.epochs, shuffle=False, verbose=0)
    if comm.rank == 0:
        for number, loss in enumerate(history.history["loss"]):
            print(f"epoch {number}: loss {loss:.5f}")


if __name__ == "__main__":
    main()

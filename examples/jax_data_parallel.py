"""Data parallelism in plain JAX: every rank has the whole model, and trains it on its part of each batch.

ringreduce run -n 2 python examples/jax_data_parallel.py
"""

import argparse

import jax
import jax.numpy as jnp

import ringreduce
import ringreduce.jax as rj

WIDTH = 32


def make_model(key):
    first, second = jax.random.split(key)
    up = jax.random.normal(first, (WIDTH, 4 * WIDTH)) / WIDTH**0.5
    down = jax.random.normal(second, (4 * WIDTH, 1)) / WIDTH
    return {"up": up, "down": down}


def loss_of(model, x):
    error = jax.nn.gelu(x @ model["up"]) @ model["down"] - jnp.sin(x).sum(1, keepdims=True)
    return (error**2).mean()


@jax.jit
def step(model, x):
    """Returns the next model and the loss of the global batch. All ranks get the same."""
    loss, gradients = jax.value_and_grad(loss_of)(model, x)
    gradients = jax.tree.map(lambda gradient: rj.all_reduce(gradient, "avg"), gradients)
    model = jax.tree.map(lambda value, gradient: value - 0.01 * gradient, model, gradients)
    return model, rj.all_reduce(loss, "avg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=24, help="samples per step, over all ranks")
    options = parser.parse_args()
    comm = ringreduce.init()
    model = make_model(jax.random.key(comm.rank))
    model = jax.tree.map(rj.broadcast, model)  # rank 0's
    for number in range(options.steps):
        batch = jax.random.normal(jax.random.key(number), (options.batch, WIDTH))
        mine = batch.reshape(comm.size, -1, WIDTH)[comm.rank]
        model, loss = step(model, mine)
        if comm.rank == 0:
            print(f"step {number}: loss {loss:.5f}")


if __name__ == "__main__":
    main()

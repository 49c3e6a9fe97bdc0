"""Ray actors that add their arrays (ray.util.collective), without torch (pip install ray).

python examples/ray_collectives.py --actors 4
"""

import argparse

import numpy as np
import ray
import ray.util.collective as collective

import ringreduce.ray


@ray.remote
class Worker:
    def __init__(self, rank: int, size: int) -> None:
        ringreduce.ray.register()
        collective.init_collective_group(size, rank, "ringreduce", "workers")
        self.rank = rank

    def total(self) -> list[float]:
        x = np.full(4, self.rank + 1, "float32")
        collective.allreduce(x, "workers")
        return x.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actors", type=int, default=2)
    size = parser.parse_args().actors
    ray.init(num_cpus=size)
    workers = [Worker.remote(rank, size) for rank in range(size)]
    print(ray.get([worker.total.remote() for worker in workers]))


if __name__ == "__main__":
    main()

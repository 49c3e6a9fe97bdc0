"""The handles of asynchronous calls."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.conftest import on_processes, on_threads


@pytest.mark.parametrize("on", [on_threads, on_processes])
def test_times_of_a_call(on):
    def rank_main(comm):
        x = np.ones(1000, "float32")
        before = time.monotonic()
        works = [comm.all_reduce(x, async_op=True), comm.all_reduce(x, async_op=True)]
        meet = comm.send if comm.rank == 1 else comm.recv
        late = meet(x, 1 - comm.rank, tag=7, async_op=True)
        for work in [*works, late]:
            work.wait()
            assert before <= work.began <= work.ended <= time.monotonic()
        assert works[0].ended <= works[1].began  # one after the other

    on(2, rank_main)


def test_a_wait_for_a_peer_belongs_to_the_call():
    def rank_main(comm):
        if comm.rank == 1:
            time.sleep(0.2)
        work = comm.all_reduce(np.ones(10), async_op=True)
        assert comm.rank == 1 or work.began is None is work.ended
        work.wait()
        assert comm.rank == 1 or work.ended - work.began >= 0.15

    on_threads(2, rank_main)

"""Tensors in memory that other ranks read in place: which ones lie there, and that nothing else differs."""

from __future__ import annotations

import os
import sys

import pytest

from tests.conftest import slow_rows
from tests.processes import on_ranks_of_a_command

torch = pytest.importorskip("torch")

from .groups import is_shared, on_process_group  # noqa: E402

K, M = 1 << 10, 1 << 20


def moved(*shape, **options):
    """A tensor of zeros that has moved."""
    import torch.distributed as dist

    tensor = torch.zeros(*shape, **options)
    for _ in range(3):
        dist.all_reduce(tensor)
    assert is_shared(tensor)
    return tensor


def test_which_tensors_move(monkeypatch):
    def uses():
        import torch.distributed as dist

        small, large = torch.ones(1000), torch.ones(64 * K)
        grown = torch.ones(10)
        grown.resize_(64 * K)
        layer = torch.nn.Linear(512, 512)
        layer(torch.ones(2, 512)).sum().backward()
        kinds = [
            *(small, large, grown, large.clone(), large * 2, torch.zeros(M, dtype=torch.uint8)),
            *(large.bfloat16(), torch.ones(256, 512).t().contiguous(), layer.weight.data, layer.weight.grad),
        ]
        found = []
        for _ in range(3):
            found.append([is_shared(x) for x in kinds])
            for x in kinds:
                dist.all_reduce(x, dist.ReduceOp.MAX)
        assert (large == 1).all() and (layer.weight.grad == layer.weight.grad[0]).all()
        return found

    small = [False, *[True] * 5, False, True, True, True]
    assert on_process_group(2, uses) == [[[False] * 10, [False] * 10, small]] * 2
    assert on_process_group(1, uses) == [[[False] * 10] * 3]
    monkeypatch.setenv("RINGREDUCE_TORCH_MEMORY", "ordinary")
    assert on_process_group(2, uses) == [[[False] * 10] * 3] * 2


def test_a_value_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("RINGREDUCE_TORCH_MEMORY", "public")
    with pytest.raises(Exception, match="RINGREDUCE_TORCH_MEMORY must be moving or ordinary, not 'public'"):
        on_process_group(1, lambda: None)


def test_reductions_are_right_while_tensors_move():
    def reduced():
        import torch.distributed as dist

        found = []
        for size in (64 * K - 1, 64 * K, 3 * M, 5 * M + 3):
            right = torch.arange(size, dtype=torch.float32) % 1000
            x, view = torch.empty(size), torch.zeros(size + 100)[50:-50]
            for _ in range(4):
                x.copy_(right + dist.get_rank())
                view.copy_(x)
                work = dist.all_reduce(x, async_op=True)
                dist.all_reduce(view)
                work.wait()
                found.append(bool((x == 2 * right + 1).all() and (view == x).all()))
        return all(found)

    assert on_process_group(2, reduced) == [True] * 2


def test_buckets_and_shards_move():
    """Those of DDP and FSDP, and training gives what it gives with ordinary memory."""

    def trained(wrap):
        import torch.distributed as dist

        torch.manual_seed(1)
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
        for step in range(6):
            optimizer.zero_grad()
            torch.manual_seed(100 * step + dist.get_rank())
            wrapped(torch.randn(4, 512)).square().mean().backward()
            optimizer.step()
        with open("/proc/self/maps") as maps:
            moved = any("memfd:ringreduce" in line and "rw-s" in line for line in maps)
        return moved, sum(float(p.detach().double().sum()) for p in model.parameters())

    def ddp():
        from torch.nn.parallel import DistributedDataParallel

        return trained(lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True))

    def ordinary():
        os.environ["RINGREDUCE_TORCH_MEMORY"] = "ordinary"
        return ddp()

    assert on_process_group(2, ddp)[0][1] == on_process_group(2, ordinary)[0][1]


def test_a_forked_process_has_a_copy_of_its_own():
    def forked():
        kept, dropped = moved(300 * K), moved(300 * K)
        kept += 1
        dropped += 2
        asks, answers = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.read(asks[0], 1)  # the parent has changed and freed its own by now
                good = bool((kept == 1).all() and (dropped == 2).all()) and not is_shared(kept)
                kept += 5
                new = torch.full((300 * K,), 9.0)
                del dropped
                good = good and bool((kept == 6).all() and (new == 9).all())
                os.write(answers[1], b"y" if good else b"n")
                code = 0
            finally:
                os._exit(code)
        kept.fill_(3)
        del dropped
        other = torch.full((300 * K,), 4.0)
        os.write(asks[1], b"x")
        said = os.read(answers[0], 1)
        os.waitpid(child, 0)
        return said, bool((kept == 3).all() and (other == 4).all()), is_shared(kept)

    assert on_process_group(2, forked) == [(b"y", True, True)] * 2


def test_a_forked_process_that_dies_holds_nothing_up():
    """The parent waits for the copy, but not for a child that will never make it."""

    def forked():
        x = moved(16 << 20)
        x += 1
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        return x.sum().item()

    assert on_process_group(2, forked) == [float(16 << 20)] * 2


class Rows(torch.utils.data.Dataset):
    """Rows of two tensors, one of which moves when it is communicated."""

    def __init__(self, shared, private):
        self.shared, self.private = shared, private

    def __len__(self):
        return len(self.shared)

    def __getitem__(self, row):
        return self.shared[row], self.private[row]


PROGRAM = """
import sys, warnings
import torch, torch.distributed as dist
from tests.frameworks.torch.test_allocator import Rows, moved, is_shared

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # there is no GPU to pin memory for
    way, persistent, workers = sys.argv[1], sys.argv[2] == "True", int(sys.argv[3])
    dist.init_process_group("ringreduce")
    shared, private = moved(64, 8192), torch.empty(64, 8192)
    dataset = Rows(shared, private)
    fill = lambda value: (shared.copy_(torch.arange(64.0)[:, None] + value), private.copy_(shared + 0.5))
    fill(0)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, num_workers=workers, multiprocessing_context=way,
        persistent_workers=persistent, pin_memory=True,
    )
    for epoch in range(4):
        seen = 0
        # Forked workers have what was there when they were started. Others share the tensors, which torch moves.
        began = 0 if persistent and way == "fork" else epoch
        for batch, (a, b) in enumerate(loader):
            if batch == 0 and way == "fork":
                fill(1000 * (epoch + 1))
            rows = torch.arange(8.0 * batch, 8.0 * batch + 8)[:, None] + 1000 * began
            assert (a == rows).all() and (b == rows + 0.5).all(), (epoch, batch, a[:, 0], b[:, 0])
            dist.all_reduce(a, dist.ReduceOp.MAX)
            assert (a == rows).all()
            seen += len(a)
        assert seen == 64
        fill(1000 * (epoch + 1))
    assert is_shared(shared) == (way == "fork")
    dist.destroy_process_group()
"""


OTHERS = [("fork", False), ("spawn", False), ("spawn", True), ("forkserver", False), ("forkserver", True)]


@pytest.mark.parametrize(
    ("way", "persistent", "workers"),
    [("fork", True, 2), *slow_rows(*((*other, 2) for other in OTHERS))],
)
def test_workers_of_a_data_loader_read_what_was_there_when_they_began(way, persistent, workers, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = on_ranks_of_a_command("-n", 2, sys.executable, program, way, persistent, workers, timeout=200)
    assert done.returncode == 0, done.stderr

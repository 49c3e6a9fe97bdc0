"""A part of torch's own tests, every kind of operation in groups of 2, 3 and 4 ranks; `make test-torch` runs all.

Two tests run at a time: what was selected is asked for ahead, and each item waits for its own result.
"""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from .suite import expected
from .suite.client import Suite
from .suite.outcome import PASSED, Outcome

LIMIT = 200.0  # seconds of one test, in which a hang must be told before pytest gives up
DOCS = Path(__file__).parents[3] / "docs" / "torch.md"
QUICK = [
    "test_all_reduce_sum",
    "test_sparse_all_reduce_sum",
    "test_reduce_min",
    "test_gather",
    "test_all_to_all_single_unequal_split",
    "test_send_recv_with_tag",
    "test_get_future",
    "ddp.test_ddp_comparison_uneven_inputs",
]
VARIANTS = [
    "test_all_reduce_coalesced_sum",
    "test_broadcast",
    "test_scatter_object_list",
    "test_all_gather_object_default_pg",
    "test_barrier_timeout_global",
    "test_monitored_barrier_gloo",
    "test_send_recv_torch_profiler",
    "test_ddp_logging_data_cpu",
    "test_all_reduce_sum_async",
    "test_scatter",
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_to_all",
    "test_barrier",
    "test_irecv",
    "test_get_backend",
    "test_destroy_group",
    "test_DistributedDataParallel_requires_grad",
    "test_grads_same_across_ranks_with_no_sync",
    "test_batch_isend_irecv_gloo_tags",
    "test_all_reduce_product",
    "test_all_reduce_sum_complex",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_coalesced_full_group_max",
    "test_broadcast_full_group",
    "test_reduce_sum_twice",
    "test_scatter_checks",
    "test_scatter_complex",
    "test_gather_checks",
    "test_all_gather_complex",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_subgroup",
    "test_all_to_all_complex",
    "test_all_to_all_single_equal_split_complex",
    "test_barrier_timeout_full_group",
    "test_monitored_barrier_gloo_subgroup",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_send_recv_any_source_autograd_profiler",
    "test_isend_torch_profiler",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
]
WITH_4_RANKS = [
    "test_gather_object",
    "test_new_subgroups_with_group_param",
    "ddp_under_rpc.test_backward_ddp_inside",
]
ITEMS = [
    pytest.param(
        world, test, id=f"{world}-{test}", marks=[] if world == 2 and test in QUICK else [pytest.mark.slow]
    )
    for world in (2, 3, 4)
    for test in [*QUICK, *VARIANTS, *(WITH_4_RANKS if world == 4 else [])]
]


class Results:
    """The servers, one for each world when its first test is wanted, and what they were asked for."""

    def __init__(self, selected: list[tuple[int, str]]) -> None:
        self._selected = selected
        self._suites: dict[int, Suite] = {}
        self._asked: dict[tuple[int, str], Future[Outcome]] = {}

    def get(self, world: int, test: str) -> Outcome:
        """Waits for a test."""
        if world not in self._suites:
            suite = self._suites[world] = Suite("ringreduce", world, jobs=2)
            for item in self._selected:
                if item[0] == world:
                    self._asked[item] = suite.ask(item[1], LIMIT)
        if (world, test) not in self._asked:
            self._asked[world, test] = self._suites[world].ask(test, LIMIT)
        return self._asked.pop((world, test)).result()

    def close(self) -> None:
        """Ends the servers."""
        for suite in self._suites.values():
            suite.close()


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest):
    distributed = hasattr(request.config, "workerinput")  # then other processes run most of the items
    items = [] if distributed else request.session.items
    ours = [
        item.callspec.params for item in items if item.fspath == request.fspath and hasattr(item, "callspec")
    ]
    found = Results([(params["world"], params["test"]) for params in ours if "world" in params])
    yield found
    found.close()


@pytest.mark.parametrize(("world", "test"), ITEMS)
def test_of_torch(world: int, test: str, results: Results):
    skip = expected.find(expected.load(), test, world)
    if skip:
        pytest.skip(skip.reason)
    outcome = results.get(world, test)
    assert outcome.outcome == PASSED, outcome.text()


def test_docs_quote_what_is_skipped():
    if not DOCS.exists():
        pytest.skip("there is no docs/torch.md")
    page = DOCS.read_text(encoding="utf-8")
    shown = page.split(f"{expected.BEGIN}\n")[1].split(f"\n{expected.END}")[0]
    assert shown == expected.section(), (
        "run: python -m tests.frameworks.torch.suite.expected, and put it between the markers"
    )

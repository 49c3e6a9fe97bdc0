"""docs/gpu.md says which operations are served on which path, as calls of all of them find it."""

import pytest

from . import served
from .ranks import EMULATED_ONLY

pytestmark = EMULATED_ONLY


@pytest.mark.slow
def test_the_page_says_what_is_served():
    """After a change: python -m tests.gpu.served --write."""
    assert served.in_page(served.PAGE.read_text()) == served.table()


def test_a_wrong_result_is_no_answer():
    def wrong(on):
        x = on.own()
        on.comm.all_reduce(x)
        on.is_equal(x, on.total() + 1)

    with pytest.raises(AssertionError):
        served.answer(wrong, "CPU")

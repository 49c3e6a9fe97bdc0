"""docs/gpu.md says which operations are served on which path, as calls of all of them find it."""

import pytest

from . import served
from .probe import HAS_CARD
from .ranks import EMULATED_LIBRARY

pytestmark = [
    pytest.mark.timeout(110),
    pytest.mark.skipif(
        HAS_CARD or not EMULATED_LIBRARY.exists(), reason="on a card, or not built: make emulated"
    ),
]


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

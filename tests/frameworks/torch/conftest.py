"""Asks whether there is a card, before pytest-xdist starts its workers, which inherit the answer."""

from tests.gpu import probe  # noqa: F401

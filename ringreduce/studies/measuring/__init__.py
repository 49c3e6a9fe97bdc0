"""Clocks that ranks share, and times of calls that are measured with them."""

"""Measuring, modelling, simulating and comparing algorithms."""

"""Attacks that search for inputs whose gradient is the observed one: recipes on one loop."""

from attacks.optimisation.inverting_gradients import inverting_gradients

__all__ = ["inverting_gradients"]

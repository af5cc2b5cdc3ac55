"""Attacks that solve for the inputs instead of searching for them."""

from attacks.analytic.cocktail_party import cocktail_party
from attacks.analytic.completed_update import CompletedUpdate, complete_update
from attacks.analytic.completion import Completion, CompletionError, complete_matrix
from attacks.analytic.first_linear import first_linear
from attacks.analytic.low_rank import complete_low_rank
from attacks.analytic.rgap import rgap
from attacks.analytic.spear import spear

__all__ = [
    "CompletedUpdate",
    "Completion",
    "CompletionError",
    "cocktail_party",
    "complete_low_rank",
    "complete_matrix",
    "complete_update",
    "first_linear",
    "rgap",
    "spear",
]

"""Effects of a defense on the search for a sentence, for adaptive and plain attackers.

An attacker who knows that an update was pruned matches only the entries that were sent, not zeros in
place of the others. The table of token embeddings has a gradient only in the rows of the sentence's
tokens, which are few: pruning by size may leave it whole, and with it the set of words.
"""

from __future__ import annotations

from dataclasses import replace

from attacks.knowledge import pruning_of, sends_signs, tells_all
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import squashed
from attacks.optimisation.problem import Problem
from attacks.text.language_model import POSITIONS, TOKENS
from fl_app.types import Observation

NOTICED = 0.01
"""The share of zeros from which an update does not look whole."""


def informed_search(recipe: Recipe, obs: Observation, problem: Problem) -> tuple[Recipe, list[str]]:
    """Return the search of an attacker who knows the defense, and notes on the changes."""
    notes = []
    if sends_signs(obs):
        recipe = replace(recipe, matching=squashed(recipe.matching, problem.sizes))
        notes.append("adaptive: the guess is compared by little more than its signs")
    if tells_all(obs):
        return recipe, notes
    share = float(problem.sent.double().mean())
    notes.append(f"adaptive: only what was sent is matched, {share:.1%} of the entries")
    return replace(recipe, masked=True), notes


def unsent_entries(obs: Observation) -> list[str]:
    """Return a note if more of the update is zero than an undefended one has."""
    # positions after the sentence's end, and tokens that it lacks, have no gradient anyway
    dense = [entries for name, entries in obs.update.items() if name not in (TOKENS, POSITIONS)]
    zeros = sum(int((entries == 0).sum()) for entries in dense)
    share = zeros / max(1, sum(entries.numel() for entries in dense))
    if share < NOTICED:
        return []
    return [f"premise failed: {share:.1%} of the entries did not travel, and are matched as zeros"]


def rows_travelled(obs: Observation) -> bool:
    """Return whether pruning had room for every row of the token embeddings that has a gradient."""
    rule = pruning_of(obs)
    if rule is None or rule.kept is None or TOKENS not in obs.update:
        return False
    entries = obs.update[TOKENS]
    return int(entries.count_nonzero()) < int(rule.kept * entries.numel())

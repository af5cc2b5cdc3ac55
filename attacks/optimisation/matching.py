"""From recipe to solution: restarts of one or more problems, stacked, solved, and the best chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.base import StepListener
from attacks.optimisation.client_gradient import Loss, client_gradient
from attacks.optimisation.evidence import Evidence
from attacks.optimisation.freed_memory import keep_freed_memory
from attacks.optimisation.loop import Guide, Objective, Outcome, Schedule, minimise
from attacks.optimisation.objectives import Distance, Matching
from attacks.optimisation.optimisers import Optimiser, Variables
from attacks.optimisation.problem import Problem
from attacks.optimisation.trail import Seen, Stop, Trail, differences, stops_of

MEMORY_BUDGET = 2 * 2**30
"""Bytes that the stacked graph may take; more guesses are run in several stacks."""

# numbers that the graph of a guess keeps for each activation and each parameter: chosen so
# that a step's measured growth, on ResNets of two widths, stays within it and 100 MB
_GRAPH_ACTIVATIONS, _GRAPH_PARAMETERS = 10, 11
_WORTH_THREADS = 64 * 2**20


Prior = Callable[[Variables], Tensor]
"""From stacked variables to one penalty each (P,)."""
Owners = Sequence[int]
"""Number of the problem of each guess in a stack."""


@dataclass(frozen=True)
class Recipe:
    """Parts in which optimisation attacks differ."""

    draw: Callable[[torch.Generator], Variables]
    """One guess to start from, without the problem axis."""
    decode: Callable[[Variables, Tensor], tuple[Tensor, Tensor]]
    """From stacked variables and the problems' labels (P, B) to the model's inputs and labels."""
    matching: Matching
    optimiser: Callable[[], Optimiser]
    schedule: Schedule
    steps: int
    priors: tuple[tuple[float, Prior], ...] = ()
    """Weights and penalties, added to the distance."""
    own_priors: Callable[[Owners], Sequence[tuple[float, Prior]]] = lambda owners: ()
    """The same for penalties that depend on the problem of each guess."""
    guide: Callable[[Owners, Tensor], Guide] | None = None
    """Term that draws restarts of a problem together, for a stack of all restarts and its labels (P, B)."""
    project: Callable[[Variables], Variables] = lambda variables: variables
    masked: bool = False
    """Match only the entries that were sent."""
    withheld: float = 0.0
    """Weight of the pruning rule on unsent entries; only if ``masked``."""
    draws: tuple[str, ...] = ()
    """Variables that stochastic layers take for their draws, named as the buffers which hold them."""
    loss: Loss = F.cross_entropy
    stop_below: float | None = None
    """A guess with a lower objective is solved."""
    patience: int | None = None
    """Number of steps in which the objective must fall noticeably; otherwise the guess is redrawn."""
    remembered: int = 0
    """Numbers that the optimiser keeps for a guess."""


@dataclass(frozen=True, eq=False)
class Solution:
    """All restarts of one problem."""

    variables: Variables
    objective: Tensor
    """(R,); infinite where a restart never had a finite one."""
    notes: tuple[str, ...]
    trail: tuple[Stop, ...] = ()
    """Snapshots of the best restart."""
    solved_after: int | None = None
    """Steps that the best restart took to reach the target objective; None: it did not reach it."""

    @property
    def best(self) -> int:
        """The restart with the lowest objective."""
        return int(self.objective.argmin())


def match_gradients(
    problems: Sequence[Problem],
    labels: Sequence[Tensor],
    recipe: Recipe,
    *,
    restarts: int,
    seed: int,
    time_budget: float | None = None,
    on_step: StepListener | None = None,
    trail: int = 0,
    starts: Sequence[Variables] | None = None,
) -> list[Solution]:
    """Solve problems that share a model and a shape; ``labels`` holds each problem's own (B,).

    ``starts`` holds each problem's first guesses, one per restart; without them they are drawn.

    Restart ``r`` draws from ``seed + r``, whatever is stacked with it, so that a
    restart is the same alone and in company. About ``trail`` iterates of the best one are kept.
    """
    _require_one_model(problems)
    keep_freed_memory()
    guesses = [(p, r) for p in range(len(problems)) for r in range(restarts)]
    size = graph_size(problems[0])
    at_once = max(1, MEMORY_BUDGET // (size + recipe.remembered * problems[0].target.element_size()))
    notes: list[str] = []
    if recipe.guide is not None and at_once < restarts:
        recipe = replace(recipe, guide=None)
        notes.append(f"memory for {at_once} of {restarts} restarts at once: none is drawn to the others")
    if recipe.guide is not None:
        at_once -= at_once % restarts
    stacks = [guesses[i : i + at_once] for i in range(0, len(guesses), at_once)]
    outcomes: list[Outcome] = []
    stops: list[tuple[Stop, ...]] = []
    began = time.monotonic()
    device = problems[0].device
    # a model that draws numbers takes them from torch's own generator
    forked = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with forked, _threads_worth_having(size * min(at_once, len(guesses))):
        torch.manual_seed(seed)
        for number, stack in enumerate(stacks):
            budget = None
            if time_budget is not None:
                budget = max(0.0, time_budget - (time.monotonic() - began)) / (len(stacks) - number)
            listener = _counting_on(on_step, number * recipe.steps, len(stacks) * recipe.steps)
            outcome, note, seen = _solve(
                problems, labels, recipe, stack, seed, budget, listener, trail, starts
            )
            outcomes.append(outcome)
            stops += [stops_of(g, _step(outcome.solved_after[g]), seen) for g in range(len(stack))]
            notes += [note] if note else []
    notes += _remarks(outcomes, recipe.steps)
    stuck = torch.cat([o.stuck for o in outcomes])
    variables = {name: torch.cat([o.variables[name] for o in outcomes]) for name in outcomes[0].variables}
    objective = torch.cat([o.objective for o in outcomes])
    solved_after = torch.cat([o.solved_after for o in outcomes])
    solutions = []
    for own in (slice(p * restarts, (p + 1) * restarts) for p in range(len(problems))):
        best = own.start + int(objective[own].argmin())
        solutions.append(
            Solution(
                {name: value[own] for name, value in variables.items()},
                objective[own],
                (*notes, *_ended(objective[own], stuck[own], recipe)),
                stops[best],
                _step(solved_after[best]),
            )
        )
    return solutions


def graph_size(problem: Problem) -> int:
    """Estimate the size in bytes of one guess's graph from its activations and parameters."""
    sizes: list[int] = []

    def count(module: nn.Module, inputs: object, output: object) -> None:
        sizes.extend(
            part.numel()
            for part in (output if isinstance(output, tuple) else (output,))
            if isinstance(part, Tensor)
        )

    leaves = [module for module in problem.model.modules() if not list(module.children())]
    hooks = [module.register_forward_hook(count) for module in leaves]
    blank = problem.target.new_zeros(problem.batch_size, *problem.input_shape)
    with torch.no_grad():
        problem.model(blank)
    for hook in hooks:
        hook.remove()
    numbers = _GRAPH_ACTIVATIONS * sum(sizes) + _GRAPH_PARAMETERS * sum(problem.sizes)
    passes = len(problem.local.parts) if problem.local is not None else 1
    if problem.rounds is not None and not problem.rounds.stream:
        passes = len(problem.rounds.states)
    return numbers * problem.target.element_size() * passes


def _require_one_model(problems: Sequence[Problem]) -> None:
    if not problems:
        raise ValueError("match_gradients: expected at least one problem, got none")
    first = problems[0]
    weights = first.model.state_dict()
    for problem in problems[1:]:
        facts = [
            problem.model.training == first.model.training,
            problem.names == first.names,
            problem.batch_size == first.batch_size,
            problem.input_shape == first.input_shape,
            problem.local == first.local,
            # each client's weights went a way of their own
            problem.between is first.between,
            problem.rounds.is_like(first.rounds) if problem.rounds is not None else first.rounds is None,
            problem.mean.equal(first.mean) and problem.std.equal(first.std),
            weights.keys() == (other := problem.model.state_dict()).keys(),
            all(value.equal(other.get(name, value)) for name, value in weights.items()),
        ]
        if not all(facts):
            raise ValueError(
                "match_gradients: problems solved together must have the same weights, mode, "
                "matched parameters, batch size, input shape, local steps, earlier rounds and normalisation"
            )


@contextmanager
def _threads_worth_having(graph_bytes: int) -> Iterator[None]:
    """Run small graphs on one thread.

    Their operators are too short to share: a second thread gains little on an idle
    machine, and on a busy one each operator waits for it (once measured: twelve times slower).
    """
    before = torch.get_num_threads()
    if graph_bytes < _WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _solve(
    problems: Sequence[Problem],
    labels: Sequence[Tensor],
    recipe: Recipe,
    stack: Sequence[tuple[int, int]],
    seed: int,
    time_budget: float | None,
    on_step: StepListener | None,
    trail: int,
    given: Sequence[Variables] | None,
) -> tuple[Outcome, str | None, dict[int, Seen]]:
    owners = [p for p, _ in stack]
    # all share a model; the recipe has prepared that of the first
    first, device = problems[0], problems[0].device
    generators = [torch.Generator().manual_seed(seed + r) for _, r in stack]

    def draw(guess: int) -> Variables:
        return {name: value.to(device) for name, value in recipe.draw(generators[guess]).items()}

    starts = [draw(guess) for guess in range(len(stack))]
    if given is not None:
        starts = [{name: value[r] for name, value in given[p].items()} for p, r in stack]
    start = {name: torch.stack([variables[name] for variables in starts]) for name in starts[0]}
    known = torch.stack([labels[p] for p in owners])
    evidence = Evidence.of([problems[p] for p in owners])

    def distance_of(rows: Tensor | slice) -> Distance:
        part = evidence.rows(rows)
        return part.distance(recipe.matching, masked=recipe.masked, withheld=recipe.withheld)

    def draws_of(variables: Variables) -> Variables:
        return {name: variables[name] for name in recipe.draws}

    example = recipe.decode(recipe.project(start), known)
    gradient, note = client_gradient(
        first.model,
        first.names,
        *example,
        draws_of(start),
        recipe.loss,
        first.rounds or first.local or first.between,
        _trained(problems, owners),
    )

    def objective_of(owners: Owners, known: Tensor, distance: Distance) -> Objective:
        priors = (*recipe.priors, *recipe.own_priors(owners))
        trained = _trained(problems, owners)

        def objective(variables: Variables) -> Tensor:
            value = distance(gradient(*recipe.decode(variables, known), draws_of(variables), trained))
            for weight, prior in priors:
                value = value + weight * prior(variables)
            return value

        return objective

    def narrow(rows: Tensor) -> Objective:
        return objective_of([owners[row] for row in rows.tolist()], known[rows], distance_of(rows))

    objective, noted = objective_of(owners, known, distance_of(slice(None))), Trail(trail)
    outcome = minimise(
        objective,
        start,
        optimiser=recipe.optimiser(),
        schedule=recipe.schedule,
        steps=recipe.steps,
        project=recipe.project,
        redraw=draw,
        guide=None if recipe.guide is None else recipe.guide(owners, known),
        narrow=narrow,
        stop_below=recipe.stop_below,
        patience=recipe.patience,
        time_budget=time_budget,
        on_step=on_step,
        on_iterate=noted.note,
    )

    def judge(variables: Variables) -> Seen:
        guessed = gradient(*recipe.decode(variables, known), draws_of(variables), _trained(problems, owners))
        sizes = dict(zip(first.names, first.sizes, strict=True))
        found = differences(guessed.detach(), evidence, sizes, masked=recipe.masked)
        return Seen(variables, objective(variables).detach(), *found)

    return outcome, note, {step: judge(variables) for step, variables in noted.seen.items()}


def _step(solved_after: Tensor) -> int | None:
    return int(solved_after) if solved_after >= 0 else None


def _trained(problems: Sequence[Problem], owners: Owners) -> Tensor | None:
    """Return the mask of trained entries per guess (P, n); None if all clients train all entries."""
    if all(problem.trained is None for problem in problems):
        return None
    masks = [p.sent.new_ones(p.sent.shape) if p.trained is None else p.trained for p in problems]
    return torch.stack([masks[owner] for owner in owners])


def _counting_on(on_step: StepListener | None, before: int, total: int) -> StepListener | None:
    if on_step is None:
        return None
    return lambda done, _, best: on_step(before + done, total, best)


def _remarks(outcomes: Sequence[Outcome], steps: int) -> list[str]:
    notes = []
    fewest = min((outcome.steps for outcome in outcomes if not outcome.solved.all()), default=steps)
    redrawn = sum(outcome.redrawn for outcome in outcomes)
    if fewest < steps:
        notes.append(f"the time budget ended the search after {fewest} of {steps} steps")
    if redrawn:
        notes.append(f"the search left the finite numbers and was started anew, {redrawn} times in all")
    return notes


def _ended(objective: Tensor, stuck: Tensor, recipe: Recipe) -> list[str]:
    notes = []
    if times := int(stuck.sum()):
        notes.append(f"the objective no longer fell and the search was started anew, {times} times")
    lowest = float(objective.min())
    if recipe.stop_below is not None and not lowest < recipe.stop_below:
        notes.append(f"not converged: the objective ended at {lowest:.1e}, above {recipe.stop_below:.0e}")
    return notes

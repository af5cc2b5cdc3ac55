"""Recovery of a whole transcript from the decoder's gradient (Dang et al. 2021, Section 4).

The bag of words says which tokens there are and how many; what the decoder was shown of the audio, its
context vectors, is searched for together with one smooth label a step, until their gradient is
the observed one. What flows back from a context to the state that asked for it is left out, for it
takes the audio to know: of ``decoder.gates`` the match can be good, but not perfect.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from attacks.base import Attack, LabelSet, StepListener, Transcript, reading
from attacks.optimisation.loop import Objective, Outcome, Schedule, minimise
from attacks.optimisation.optimisers import Adam, Variables
from attacks.sequences.bag_of_words import bag_of_words, told_length
from attacks.sequences.decoder_gradient import decoder_gradient
from attacks.sequences.observed_decoder import observed_decoder
from attacks.sequences.settled import Settled
from fl_app.types import Observation

WHO = "transcript"
HALF_LIFE = 4_000
"""Half-life of the learning rate in steps."""
LEAST = 0.1
"""Lowest learning rate, relative to the first."""
SPREAD = 0.1
"""Deviation of the first contexts' entries."""


def transcript(
    bag: bool = True,
    steps: int = 4_000,
    restarts: int = 5,
    lr: float = 0.05,
    penalty: float = 1.0,
    patience: int = 2_000,
    rank: int | None = None,
    start: int = 1,
    seed: int = 0,
) -> Attack:
    """Recover the tokens of one utterance, in order; of ``restarts`` the one with the nearest gradient.

    With ``bag`` only the tokens of `bag_of_words` are searched for, and of the projection only their
    rows are matched; without, all of the vocabulary. ``rank`` is the number of tokens; None infers it
    from the gradient. ``start`` is the token before the first, which is public. ``penalty`` weighs the
    sum of ``| |p_i| - 1 |`` over the labels ``p_i``. A search whose tokens have not changed for
    ``patience`` steps is over. The paper's distance is one norm of all parameters; ours is the sum of
    each one's, relative to the observed, so that none is too small to count.
    """
    for name, number in (("steps", steps), ("restarts", restarts), ("patience", patience)):
        if number < 1:
            raise ValueError(f"{WHO}: {name} must be at least 1, got {number}")
    if not (lr > 0 and penalty >= 0):
        raise ValueError(f"{WHO}: lr must be positive and penalty at least 0, got {lr} and {penalty}")
    find_bag = bag_of_words(rank)

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> Transcript:
        _check_model(obs, start)
        found = find_bag(obs)
        length, notes = told_length(obs, rank) or found.rank or 0, [*found.notes, *_failed_premises(obs)]
        if length == 0:
            return Transcript((), notes=[*notes, "the gradient has rank 0: there is nothing to match"])
        pieces = _pieces(obs, found if bag else None)
        outcome = minimise(
            _objective(obs, pieces, start, penalty),
            draw := _draw(obs, length, len(pieces), restarts, seed),
            optimiser=Adam(),
            schedule=halving(lr, steps),
            steps=steps,
            project=_keep_labels_positive,
            redraw=lambda row: {name: values[row] for name, values in draw.items()},
            until=Settled(patience),
            on_step=on_step,
        )
        result = _read(outcome, pieces, [*notes, f"{length} tokens of {len(pieces)} pieces sought"], steps)
        return dataclasses.replace(result, rule=found.rule if bag else None)

    return reading("transcripts", attack)


def halving(lr: float, steps: int) -> Schedule:
    """Return the schedule that halves ``lr`` every `HALF_LIFE` of ``steps``, down to a tenth."""
    return lambda progress: lr * max(0.5 ** (round(progress * steps) // HALF_LIFE), LEAST)


def label_penalty(labels: Tensor) -> Tensor:
    """Return for each guess the distance of its labels (R, S, K) from a sum of 1, over all steps (R,)."""
    return (labels.abs().sum(dim=2) - 1).abs().sum(dim=1)


def _check_model(obs: Observation, start: int) -> None:
    names = dict(obs.model.named_parameters())
    for name in ("decoder.embedding.weight", "decoder.show.weight", "output.weight", "output.bias"):
        if name not in names:
            kind = type(obs.model).__name__
            raise ValueError(f"{WHO}: the model must spell, with a parameter {name}, got a {kind}")
    tokens = len(names["decoder.embedding.weight"])
    if not 0 <= start < tokens:
        raise ValueError(f"{WHO}: start must be one of {tokens} tokens, got {start}")
    if obs.local_steps is not None and obs.lr is None:
        raise ValueError(f"{WHO}: an update of local steps needs lr, which is not granted")


def _failed_premises(obs: Observation) -> list[str]:
    notes = []
    if obs.batch_size is not None and obs.batch_size > 1:
        notes.append(f"premise failed: {obs.batch_size} utterances are matched as one")
    if obs.local_steps is not None and obs.local_steps > 1:
        notes.append(f"premise failed: {obs.local_steps} local steps are matched as one")
    return notes


def _pieces(obs: Observation, found: LabelSet | None) -> Tensor:
    device = obs.update["output.weight"].device
    if found is None:
        return torch.arange(len(obs.update["output.weight"]), device=device)
    return found.labels.sort().values.to(device)


def _objective(obs: Observation, pieces: Tensor, start: int, penalty: float) -> Objective:
    gradient = decoder_gradient(obs.model, pieces, start)
    matched = observed_decoder(obs, pieces)

    def objective(variables: Variables) -> Tensor:
        labels = variables["labels"]
        guessed = gradient(variables["contexts"], labels)
        distances = [entries.distance(guessed[name]) for name, entries in matched.items()]
        return torch.stack(distances).sum(dim=0) + penalty * label_penalty(labels)

    return objective


def _draw(obs: Observation, length: int, pieces: int, restarts: int, seed: int) -> Variables:
    like = obs.update["output.weight"]
    generator = torch.Generator().manual_seed(seed)
    show = obs.model.get_parameter("decoder.show.weight")
    width = show.shape[1] - show.shape[0]  # it is shown the state and the context
    contexts = SPREAD * torch.randn(restarts, length, width, generator=generator)
    labels = torch.rand(restarts, length, pieces, generator=generator)
    return {"contexts": contexts.to(like), "labels": (labels / labels.sum(dim=2, keepdim=True)).to(like)}


def _keep_labels_positive(variables: Variables) -> Variables:
    return {**variables, "labels": variables["labels"].clamp(min=0)}


def _read(outcome: Outcome, pieces: Tensor, notes: list[str], steps: int) -> Transcript:
    best = int(outcome.objective.argmin())
    if not outcome.objective[best].isfinite():
        return Transcript((), notes=[*notes, "no guess ever had a finite gradient"])
    every = pieces[outcome.variables["labels"].argmax(dim=2)]
    agreeing = int((every == every[best]).all(dim=1).sum())
    notes.append(f"{agreeing} of {len(every)} restarts end in this transcript")
    if outcome.steps < steps:
        notes.append(f"unchanged for a while after {outcome.steps} steps")
    sought = sum(values[best].numel() for values in outcome.variables.values())
    return Transcript(
        every[best].tolist(), objective=float(outcome.objective[best]), notes=notes, variables=sought
    )

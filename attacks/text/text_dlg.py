"""Deep Leakage from Gradients on a masked language model (Zhu et al. 2019, section 4.2).

Words are discrete, so the search moves the embeddings at each place until their gradient is the
observed one. The result is the words with the closest embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.base import StepListener, Transcript
from attacks.optimisation.lbfgs import LBFGS
from attacks.optimisation.matching import Recipe, match_gradients
from attacks.optimisation.objectives import relative_distance
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem
from attacks.text.adaptation import informed_search, rows_travelled, unsent_entries
from attacks.text.clues import SOURCES, Targets, find_targets, sentence_length
from attacks.text.embedding_rows import embedding_rows
from attacks.text.even_distance import by_tensor_and_position
from attacks.text.language_model import TOKENS, as_language_model, searched, sentence_problem
from attacks.text.recorded import Recorded
from fl_app.types import Observation

Spell = Callable[[Sequence[int]], str]
"""From tokens to text: the vocabulary is public."""

HISTORY = 100
PATIENCE = 15
"""Steps in which the objective must fall noticeably."""
_AT_ONCE = 1024
"""Words that are compared with a sentence at a time."""
_WHO = "text_dlg"


@dataclass(frozen=True, kw_only=True)
class TextLeakage:
    """Recover one sentence from the gradient of a masked language model.

    ``targets``, which places were masked and what stood there: "granted" by the observation's labels;
    or searched for with the embeddings, "optimise" among all tokens, "infer" among those that the output
    bias betrays; "auto" uses granted targets, and infers else. ``adaptive``: the attacker knows the
    defense (`attacks.text.adaptation`). ``even``: all tensors and all positions count alike; without, the
    plain squared distance of the paper. ``use_embedding_rows``: words only out of those that
    `embedding_rows` finds.
    Each of ``steps`` is up to 20 iterations of L-BFGS; a search ends below ``tolerance``, and starts anew
    when it no longer gets closer; of ``restarts`` the closest is kept. ``history``: the result also
    says what was read after so many steps. ``spell`` gives the result a text. ``time_budget`` in seconds.
    """

    steps: int = 100
    restarts: int = 1
    adaptive: bool = False
    targets: str = "auto"
    even: bool = True
    use_embedding_rows: bool = False
    tolerance: float = 1e-5
    history: Sequence[int] = (0, 10, 20, 30)
    spell: Spell | None = None
    seed: int = 0
    time_budget: float | None = None

    reads: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        for name, number in (("steps", self.steps), ("restarts", self.restarts)):
            if number < 1:
                raise ValueError(f"{_WHO}: {name} must be at least 1, got {number}")
        if self.targets not in SOURCES:
            raise ValueError(f"{_WHO}: targets must be one of {SOURCES}, got {self.targets!r}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"{_WHO}: tolerance must be in [0, 1), got {self.tolerance}")
        if self.time_budget is not None and not self.time_budget > 0:
            raise ValueError(f"{_WHO}: time_budget must be positive seconds or None, got {self.time_budget}")
        object.__setattr__(self, "history", tuple(self.history))  # a list could not be hashed

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Transcript:
        """Attack one update."""
        as_language_model(obs.model, _WHO)
        length, about_length = sentence_length(obs, _WHO)
        targets = find_targets(obs, length, self.targets, who=_WHO)
        problem = sentence_problem(obs, length, who=_WHO)
        vocabulary, about_words = self._vocabulary(obs)
        records: list[Recorded] = []
        recipe = self._recipe(problem, targets, records)
        about_defense = unsent_entries(obs)
        if self.adaptive:
            recipe, about_defense = informed_search(recipe, obs, problem)
        (solution,) = match_gradients(
            [problem],
            [targets.known.to(problem.target)],
            recipe,
            restarts=self.restarts,
            seed=self.seed,
            time_budget=self.time_budget,
            on_step=on_step,
        )

        def read(variables: Variables) -> list[int]:
            return _read(
                problem, {name: v[solution.best] for name, v in variables.items()}, targets, vocabulary
            )

        tokens = read(solution.variables)
        objective = float(solution.objective[solution.best])
        finite = [] if math.isfinite(objective) else ["no guess had a finite objective: the text is noise"]
        return Transcript(
            tokens=tokens,
            text=None if self.spell is None else self.spell(tokens),
            objective=None if finite else objective,
            notes=(
                *problem.notes,
                "the table of token embeddings is not matched; words are the closest as the layers see them",
                about_length,
                targets.note,
                *about_words,
                *about_defense,
                *solution.notes,
                *finite,
            ),
            history={step: read(seen) for step, seen in _joined(records).items()},
        )

    def _vocabulary(self, obs: Observation) -> tuple[Tensor, list[str]]:
        """Return the tokens that words are chosen from."""
        everything = torch.arange(len(dict(obs.model.named_parameters())[TOKENS]))
        if not (self.use_embedding_rows or (self.adaptive and rows_travelled(obs))):
            return everything, []
        found = embedding_rows()(obs)
        if not len(found.labels):
            return everything, [*found.notes, "no row of the embeddings stands out: words out of all tokens"]
        return found.labels.sort().values, list(found.notes)

    def _recipe(self, problem: Problem, targets: Targets, records: list[Recorded]) -> Recipe:
        shape, length = problem.input_shape, problem.input_shape[1]
        # in the scale of the table's own entries, as all that follows from an embedding depends on it
        unit = float(_table(problem).std())

        def draw(generator: torch.Generator) -> Variables:
            def normal(*shape: int) -> Tensor:
                return torch.randn(shape, generator=generator, dtype=problem.target.dtype, device="cpu")

            start = {"embeddings": normal(1, *shape)}
            if targets.chances is not None:
                of_tokens = normal(length, len(targets.pieces))
                none = of_tokens.logsumexp(dim=1) + ((1 - targets.chances) / targets.chances).log()
                start["logits"] = torch.cat([of_tokens, none[:, None]], dim=1)
            return start

        def decode(variables: Variables, known: Tensor) -> tuple[Tensor, Tensor]:
            shares = variables["logits"].softmax(dim=-1) if "logits" in variables else known
            return unit * variables["embeddings"], shares

        pieces = targets.pieces.to(problem.device)

        def loss(logits: Tensor, shares: Tensor) -> Tensor:
            """Return the mean over the masked places, each of which counts by its chance of being one."""
            asked = shares[:, :-1]
            return -(asked * logits[0].log_softmax(dim=-1)[:, pieces]).sum() / asked.sum()

        def optimiser() -> Recorded:
            records.append(Recorded(LBFGS(history=HISTORY), self.history))
            return records[-1]

        return Recipe(
            draw=draw,
            decode=decode,
            matching=by_tensor_and_position(problem, length) if self.even else relative_distance,
            optimiser=optimiser,
            schedule=lambda progress: 1.0,
            steps=self.steps,
            loss=loss,
            stop_below=self.tolerance,
            patience=PATIENCE,
            remembered=2 * HISTORY * (math.prod(shape) + targets.known.numel()),
        )


text_dlg = TextLeakage


def _table(problem: Problem) -> Tensor:
    return searched(problem).get_parameter(TOKENS).detach()


@torch.no_grad()
def _read(problem: Problem, variables: Variables, targets: Targets, vocabulary: Tensor) -> list[int]:
    """Return the tokens: at places that were likely masked what stood there, elsewhere the closest."""
    model, table = searched(problem), _table(problem)
    found = model.place(float(table.std()) * variables["embeddings"][0])[0]
    # what the layers see of a token depends on its place; and they see neither all of an embedding's mean
    # nor of its scale, so that comparing there what they do see is fairer than comparing embeddings
    distances = [
        (model.place(words[:, None].expand(-1, len(found), -1)) - found).square().sum(dim=2)
        for words in table[vocabulary.to(table.device)].split(_AT_ONCE)
    ]
    closest = vocabulary[torch.cat(distances).argmin(dim=0).cpu()]
    logits = variables.get("logits")
    shares = targets.known if logits is None else logits.softmax(dim=-1).cpu()
    asked = targets.pieces[shares[:, :-1].argmax(dim=1)]
    return torch.where(shares[:, -1] < 0.5, asked, closest).tolist()


def _joined(records: Sequence[Recorded]) -> dict[int, Variables]:
    """Return the records of all restarts, for the steps that every stack of them took."""
    steps = set.intersection(*(set(record.seen) for record in records))
    return {
        step: {name: torch.cat([record.seen[step][name] for record in records]) for name in first}
        for step, first in ((step, records[0].seen[step]) for step in sorted(steps))
    }

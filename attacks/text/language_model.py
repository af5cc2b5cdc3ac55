"""Interface of a masked language model under attack, and its gradient-matching problem."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, cast

from torch import Tensor, nn

from attacks.optimisation.problem import Problem, as_problem
from fl_app.types import Observation

TOKENS, POSITIONS, OUTPUT_BIAS = "tokens.weight", "positions.weight", "output.bias"
"""The embeddings of tokens (V, E) and of positions (at most so many, E), and the bias of the logits (V,)."""
_INNER = "language"


class LanguageModel(Protocol):
    """Language model that sees tokens through a table of embeddings."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (N, L, E) of tokens (N, L)."""
        ...

    def place(self, embedded: Tensor) -> Tensor:
        """Return the input of the layers (N, L, E) for embeddings (N, L, E)."""
        ...

    def from_embeddings(self, embedded: Tensor) -> Tensor:
        """Return logits (N, L, V)."""
        ...

    def get_parameter(self, target: str) -> nn.Parameter:
        """Return a parameter by its name."""
        ...


def as_language_model(model: nn.Module, who: str) -> LanguageModel:
    """Return the model, or raise an error that names its missing parts."""
    names = {name for name, _ in model.named_parameters()}
    lacks = [name for name in ("embed", "place", "from_embeddings") if not hasattr(model, name)]
    lacks += [name for name in (TOKENS, POSITIONS) if name not in names]
    if lacks:
        raise ValueError(
            f"{who}: expected a language model such as bert_mlm; {type(model).__name__} has no {lacks}"
        )
    return cast(LanguageModel, model)


def sentence_problem(obs: Observation, length: int, *, who: str) -> Problem:
    """Return the search for the embeddings of one sentence, as that for an image (1, L, E), in double.

    The table of token embeddings is not matched: an embedding that is free to move is no row of it.
    """
    if obs.batch_size not in (None, 1):
        raise ValueError(f"{who}: one sentence at a time, got a batch of {obs.batch_size}")
    width = dict(obs.model.named_parameters())[TOKENS].shape[1]
    problem = as_problem(
        replace(
            obs,
            model=_FromEmbeddings(obs.model),
            update=_renamed(obs.update),
            sent=None if obs.sent is None else _renamed(obs.sent),
            input_shape=(1, length, width),
            batch_size=1,
            labels=None,
            mean=(0.0,),
            std=(1.0,),
            buffers=None,
        ),
        who=who,
    )
    return problem.double()


def searched(problem: Problem) -> LanguageModel:
    """Return the copy of the language model that a problem searches with."""
    return cast(LanguageModel, getattr(problem.model, _INNER))


def original_names(problem: Problem) -> list[str]:
    """Return the matched parameters by the names that they have in the observation."""
    return [name.removeprefix(f"{_INNER}.") for name in problem.names]


class _FromEmbeddings(nn.Module):
    def __init__(self, language: nn.Module) -> None:
        super().__init__()
        self.add_module(_INNER, language)

    def forward(self, images: Tensor) -> Tensor:
        language = cast(LanguageModel, getattr(self, _INNER))
        return language.from_embeddings(images.squeeze(1))


def _renamed(tensors: object) -> dict[str, Tensor]:
    given = cast(dict[str, Tensor], tensors)
    return {f"{_INNER}.{name}": entries for name, entries in given.items() if name != TOKENS}

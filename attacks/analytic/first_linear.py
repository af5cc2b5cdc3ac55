"""Inputs read off the gradient of the first linear layer, in closed form.

A linear layer with bias has ``dW = sum_s delta_s x_s^T`` and ``db = sum_s delta_s``: with one
sample, every row of ``dW`` is that sample times the row's entry of ``db``. With several,
rows are mixtures; behind a ReLU each ``delta_s`` has zeros, and these tell them apart.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks.analytic.completed_update import LinearLayer
from attacks.base import Reconstruction, StepListener
from attacks.optimisation.known_labels import known_labels
from attacks.optimisation.problem import Problem, as_problem
from fl_app.types import Observation

WHO = "first_linear"
RANK_FLOOR = 1e-6
"""Singular values below this part of the largest are rounding of float32."""
ZERO = 1e-4
"""An error signal below this part of its row's length is a sample that does not activate the row."""
DRAWS, CHUNK = 300_000, 4_000
"""Number of row sets tried, in search of sets that a sample leaves inactive; number tried at once."""
MOST = 24
"""Most samples: with more, each active in half the rows, no drawn set of rows leaves one inactive."""


class Samples(NamedTuple):
    """Inputs as the model sees them (K, features)."""

    inputs: Tensor
    notes: list[str]


@dataclasses.dataclass(frozen=True)
class FirstLinear:
    """Recover inputs by dividing rows of the first linear layer's gradient by those of its bias.

    Exact for one sample. The update's scale cancels, so the delta of several local steps
    serves as well as a gradient.
    """

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        problem = scale_free_problem(obs, who=WHO)
        layer = input_layer(problem)
        if layer is None or layer.bias is None:
            what = "sees the flattened input itself" if layer is None else "sees the input and has a bias"
            return refusal(problem, f"no linear layer in the update {what}")
        weight, bias = (
            obs.update[name].detach().to(problem.device).double() for name in (layer.weight, layer.bias)
        )
        if not bias.any():
            return refusal(problem, f"nothing of {layer.bias} was sent")
        samples = read_samples(weight, bias, problem.batch_size, problem)
        labels, about_labels = labels_of(obs, problem, len(samples.inputs), who=WHO)
        return Reconstruction(
            images=as_images(samples.inputs, problem),
            labels=labels,
            notes=(*problem.notes, *about_labels, *_holes(weight, layer.weight), *samples.notes),
        )


first_linear = FirstLinear


def scale_free_problem(obs: Observation, *, who: str) -> Problem:
    """Read an observation for an attack that uses ratios only: a delta serves as a gradient."""
    problem = as_problem(dataclasses.replace(obs, local_steps=None), who=who)
    if obs.local_steps is None:
        return problem
    note = f"{obs.local_steps} local steps: the first layer sees the same inputs in each, and scale cancels"
    return dataclasses.replace(problem, notes=(*problem.notes, note))


def layer_gradients(problem: Problem, obs: Observation) -> tuple[LinearLayer, Tensor, Tensor] | None:
    """Return the layer that sees the input, and its gradients in double precision; None without a bias."""
    layer = input_layer(problem)
    if layer is None or layer.bias is None:
        return None
    weight, bias = (obs.update[n].detach().to(problem.device).double() for n in (layer.weight, layer.bias))
    return layer, weight, bias


def input_layer(problem: Problem) -> LinearLayer | None:
    """Return the first linear layer in the update whose input is the flattened input of the model."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    like = problem.target
    # two samples: BatchNorm in train mode, further on, refuses one
    probe = torch.randn((2, *problem.input_shape), generator=generator, dtype=like.dtype, device="cpu")
    probe = probe.to(like.device)
    found: list[LinearLayer] = []

    def watch(path: str) -> torch.utils.hooks.RemovableHandle:
        def note_call(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            names = [f"{path}.{name}".lstrip(".") for name in ("weight", "bias")]
            if names[0] in problem.names and torch.equal(args[0], probe.flatten(1)):
                found.append(LinearLayer(names[0], names[1] if names[1] in problem.names else None))

        return problem.model.get_submodule(path).register_forward_pre_hook(note_call)

    linear = [path for path, module in problem.model.named_modules() if isinstance(module, nn.Linear)]
    handles = [watch(path) for path in linear]
    try:
        with torch.no_grad():
            problem.model(probe)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def read_samples(weight: Tensor, bias: Tensor | None, count: int, problem: Problem) -> Samples:
    """Return up to ``count`` inputs from a layer's gradient, without ``bias`` up to scale and sign."""
    joined = weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)
    if count == 1 and bias is not None:
        # least squares over the rows: those with a large error signal count for more
        x = weight.t() @ bias / bias.square().sum()
        off = float((weight - bias[:, None] * x).norm() / weight.norm().clamp_min(1e-300))
        return Samples(x[None], [f"rows disagree by {off:.2g}: defended, or mixtures"] if off > 1e-3 else [])
    directions = separate(joined, count)
    if directions is not None:
        notes = [f"{len(directions)} samples told apart by the rows that they leave inactive"]
        if len(directions) < count:
            notes.append(f"the gradient has rank {len(directions)}, not {count}")
        return _scaled(directions, bias is not None, problem, notes if count > 1 else [])
    return _likeliest_rows(joined, bias is not None, count, problem)


def separate(rows: Tensor, count: int) -> Tensor | None:
    """Separate ``rows`` into the inputs that they mix, each up to a factor; None if that fails.

    With ``rows = L R`` of rank ``r``, the error signal of sample ``s`` is ``L q_s`` for some
    ``q_s``, and zero in every row that the sample leaves inactive. Sets of ``r - 1`` rows are
    drawn; if one sample is inactive in all of them, the vector orthogonal to them is its
    ``q_s``, which shows in many more zeros (the idea of SPEAR, Dimitrov et al. 2024).
    The inputs are ``Q^-1 R``.
    """
    live = rows[rows.abs().amax(dim=1) > RANK_FLOOR * rows.abs().amax()]
    if not len(live):
        return None
    left: Tensor
    values: Tensor
    right: Tensor
    left, values, right = torch.linalg.svd(live, full_matrices=False)
    rank = min(count, int((values > RANK_FLOOR * values[0]).sum()))
    left, right = left[:, :rank], values[:rank, None] * right[:rank]
    if rank == 1:
        return right
    directions = _sparse_directions(left / left.norm(dim=1, keepdim=True), rank)
    return None if directions is None else torch.linalg.solve(directions.t(), right)


def _sparse_directions(left: Tensor, rank: int) -> Tensor | None:
    """Return ``rank`` independent unit vectors, as rows, each orthogonal to many rows of ``left``."""
    # chance gives an occasional zero, but not this many
    enough = rank - 1 + max(3, len(left) // 20)
    if rank > MOST or len(left) < enough:
        return None
    generator = torch.Generator(device="cpu").manual_seed(0)
    found = left.new_zeros((0, rank))
    for _ in range(DRAWS // CHUNK):
        drawn = torch.randint(len(left), (CHUNK, rank - 1), generator=generator, device="cpu")
        sets = left[drawn.to(left.device)]
        normals = torch.linalg.qr(sets.transpose(1, 2), mode="complete").Q[:, :, -1]
        zeros = ((normals @ left.t()).abs() < ZERO).sum(dim=1)
        # the sparsest first: sums of two samples' signals have zeros too, but fewer
        best = zeros.argsort(descending=True)[: int((zeros >= enough).sum())]
        found = _extended(found, normals[best], left)
        if len(found) == rank:
            return found
    return None


def _extended(found: Tensor, candidates: Tensor, left: Tensor) -> Tensor:
    while len(candidates) and len(found) < left.shape[1]:
        refined = _refined(left, candidates[0])
        if refined is not None:
            more = torch.cat([found, refined[None]])
            found = more if float(torch.linalg.svdvals(more)[-1]) > 10 * ZERO else found
        candidates = candidates[(candidates @ candidates[0]).abs() < 1 - ZERO]
    return found


def _refined(left: Tensor, normal: Tensor) -> Tensor | None:
    """Return ``normal`` refitted to all rows orthogonal to it; None if a single row determines it.

    A sum of two samples' signals is zero where both are inactive, and in one more row
    that was drawn: without that row its direction is open.
    """
    rows = left[(left @ normal).abs() < ZERO]
    basis, values, right = torch.linalg.svd(rows)
    if values[-2] < 10 * ZERO:
        return None
    leverage = basis[:, : len(values) - 1].square().sum(dim=1)
    return right[-1] if float(leverage.max()) < 1 - ZERO else None


def _likeliest_rows(rows: Tensor, with_bias: bool, count: int, problem: Problem) -> Samples:
    """Return distinct rows: first those that others agree with, then those most inside the pixel range."""
    size = rows[:, -1].abs() if with_bias else rows.abs().amax(dim=1)
    candidates = _scaled(rows[size > RANK_FLOOR * size.max()], with_bias, problem, []).inputs
    pixels = _pixels(candidates, problem).flatten(1)
    outside = (pixels - pixels.clamp(0, 1)).abs().mean(dim=1)
    apart = torch.cdist(pixels, pixels) / pixels.shape[1] ** 0.5
    alone = 1 / (apart < 1e-3).sum(dim=1)
    order = sorted(range(len(candidates)), key=lambda i: (round(float(alone[i]), 6), float(outside[i])))
    chosen: list[int] = []
    for i in order:
        if len(chosen) < count and all(apart[i, j] > 1e-2 for j in chosen):
            chosen.append(i)
    note = (
        "the samples could not be told apart: the images are single rows, each a mixture of the samples "
        "that activate it, chosen by agreement among rows and by valid pixels"
    )
    return Samples(candidates[chosen], [note])


def _scaled(vectors: Tensor, with_bias: bool, problem: Problem, notes: list[str]) -> Samples:
    """Scale multiples to inputs: by the bias, whose input is 1, or else so that pixels are valid."""
    if with_bias:
        return Samples(vectors[:, :-1] / vectors[:, -1:], notes)
    low, high = valid_range(problem)
    small = vectors.abs() <= RANK_FLOOR * vectors.abs().amax(dim=1, keepdim=True)
    factors = [
        torch.where(small, torch.inf, torch.where(v > 0, high, low) / v).amin(dim=1)
        for v in (vectors, -vectors)
    ]
    factor = torch.where(factors[0] >= factors[1], factors[0], -factors[1])
    note = (
        "no bias gradient: scale and sign of each image are unknown, the widest range of valid pixels taken"
    )
    return Samples(vectors * factor[:, None], [*notes, note])


def valid_range(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest input (features,) of a pixel in [0, 1]."""
    black = problem.target.new_zeros((1, *problem.input_shape))
    return problem.to_inputs(black).double().flatten(), problem.to_inputs(black + 1).double().flatten()


def as_images(inputs: Tensor, problem: Problem) -> Tensor:
    """Return pixels in [0, 1] (K, C, H, W) from flat inputs as the model sees them."""
    return _pixels(inputs, problem).clamp(0, 1).to(problem.target.dtype)


def _pixels(inputs: Tensor, problem: Problem) -> Tensor:
    return inputs.view(-1, *problem.input_shape) * problem.std + problem.mean


def labels_of(obs: Observation, problem: Problem, found: int, *, who: str) -> tuple[Tensor | None, list[str]]:
    """Return the labels of ``found`` images, if granted or if the batch is one sample."""
    if problem.batch_size > 1 and (obs.labels is None or found != problem.batch_size):
        return None, ["no labels: which image has which is not recovered"]
    try:
        labels, notes = known_labels(obs, problem, "auto", who=who)
    except ValueError as error:
        if obs.labels is not None:
            raise
        # the image does not depend on it
        return None, [f"no label: {error}"]
    return labels, notes if problem.batch_size == 1 else [*notes, "which image has which is not recovered"]


def refusal(problem: Problem, reason: str) -> Reconstruction:
    """Return a result without images that names the failed premise."""
    shape = (0, *problem.input_shape)
    return Reconstruction(problem.target.new_zeros(shape), notes=(*problem.notes, f"refused: {reason}"))


def _holes(weight: Tensor, name: str) -> list[str]:
    # a row of zeros is a unit that no sample activates; a single zero was pruned
    holes = int(((weight == 0) & weight.any(dim=1, keepdim=True)).sum())
    return [f"{holes} entries of {name} were not sent and count as zero"] if holes else []

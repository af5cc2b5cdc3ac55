"""Types that all rooms share: update, round, the attacker's knowledge, the truth.

The adversary's knowledge is a type. `Observation` has no field for client data
or a client's seed, so an attack cannot cheat by accident; `Truth` is a type of
its own that only `attacks.score` may hold beside a result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn

Update = dict[str, Tensor]
"""One entry per named parameter. A pruned entry is exactly 0.0."""

Tensors = Mapping[str, Tensor] | Sequence[Tensor]
"""One entry per parameter, by name or in the model's order; arrays of numpy will do as well."""

_BALANCE = 1e-3
"""Share of an output gradient's size that its sum over the classes may have from rounding alone."""
_CLEAR = 1.1
"""Factor from which the size of an update is no matter of rounding."""
_SURE = 1e-3
"""Error of a prediction below which float32 keeps too little of it."""
_FEATURES = 16
"""Width of an output layer without bias from which the signs of its rows are no coincidence."""


@dataclass(frozen=True)
class RoundContext:
    """Knowledge of a transform about its round."""

    round: int
    client: int
    generator: torch.Generator
    weights: Mapping[str, Tensor] | None = None
    locations: Mapping[str, Tensor] | None = None
    uncounted: Mapping[str, Tensor] | None = None
    """The client's last sent update, if the server did not count it."""
    samples: int | None = None
    """Number of samples behind the update; None: not known."""


@dataclass(frozen=True)
class Trace:
    """Marks that one part of a defense leaves on updates, as the defense itself states them.

    Adaptive attacks read them, and no name of a defense. The defaults are those of a defense that states
    nothing: its zeros count as entries that were not sent, and nothing is known of those.
    """

    zeros_sent: bool = False
    """Whether an entry that is 0 in the update is 0 or small in the client's gradient, too."""
    withheld: str = ""
    """Entries of each tensor that are withheld by size: ``small`` ones, or ``extreme`` ones of both ends."""
    kept: float | None = None
    """Share of each tensor that is sent, if small entries are withheld."""
    feedback: bool = False
    """Whether withheld entries are sent in later rounds."""
    memory: float = 1.0
    """With feedback: share of what was withheld that is added to the next round's update."""
    confined: bool = False
    """Whether the client trains only the entries that it sends."""
    signs: bool = False
    """Whether an entry tells little more than its sign."""
    noise: float = 0.0
    """Standard deviation of noise that is added to every entry."""
    divergence: float = 0.0
    """Weight in the loss of the KL divergence of layers that draw at random."""
    policies: tuple[tuple[int, ...], ...] = ()
    """Public rewritings of images, each as the numbers of its operations."""
    remark: str = ""
    """Advice to the attacker, noted in its results."""


class Threat(StrEnum):
    """Threat models of gradient inversion, from the least to the most that an attacker knows and can do.

    Letters of Carletti et al., "SoK: Gradient Inversion Attacks in Federated Learning", USENIX Security 2025.
    """

    A = "eavesdropper"
    """Sees updates."""
    B = "informed eavesdropper"
    """Also knows the task: shapes, classes, batch size."""
    C = "parameter-aware eavesdropper"
    """Also knows how clients train: steps, rates, mode, defense."""
    D = "data-enhanced eavesdropper"
    """Also has data like the clients'."""
    E = "statistical-informed eavesdropper"
    """Also has statistics of the client's own data."""
    F = "active manipulator"
    """Changes the model that a client gets; has no data like the clients'."""
    G = "data-enhanced manipulator"
    """Changes the model and has such data."""
    H = "active client manipulator"
    """Also chooses who takes part."""


@dataclass(frozen=True, eq=False)
class Known:
    """Images that an attacker has and no client, with their labels."""

    images: Tensor
    """Pixels (N, C, H, W) in [0, 1]."""
    labels: Tensor
    """(N,)"""


@dataclass(frozen=True)
class Observation:
    """Knowledge of an honest-but-curious server about one client's round.

    Only `model` and `update` are always there; None means "not granted".
    """

    model: nn.Module
    """The architecture with the weights that the client started from."""
    update: Update
    """A gradient (``local_steps`` None), or weights after minus weights before."""
    sent: Mapping[str, Tensor] | None = None
    """Boolean masks: which entries travelled."""
    lr: float | None = None
    local_steps: int | None = None
    local_batch_size: int | None = None
    """Samples of a local step; the last step of a pass may have fewer."""
    batch_size: int | None = None
    num_classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    """Per-channel normalisation: the model sees ``(pixel - mean) / std``."""
    defense: Sequence[Trace] | None = None
    """Traces of the client's defense; none of an undefended client, None if the defense is not known."""
    labels: Tensor | None = None
    buffers: Mapping[str, Tensor] | None = None
    """BatchNorm statistics that the client sent."""
    training: bool | None = None
    """Whether the client computed in train mode."""
    round: int | None = None
    locations: Mapping[str, Tensor] | None = None
    """Boolean masks: the only positions at which this round's updates could be non-zero (ADGP)."""
    broadcaster: bool | None = None
    """Whether this client named them: then they are the largest entries of what it pruned."""
    history: Sequence[Observation] = field(default=())
    """Earlier rounds of the same client, oldest first."""
    same_batch: bool | None = None
    """Whether the client computes on the same samples in every round, because they are all it has."""
    length: int | None = None
    """Number of tokens behind the update, ends of sequences counted, where labels are tokens."""
    rewrites: Sequence[Callable[[Tensor], Tensor]] = ()
    """Public rewritings of pixels (N, C, H, W) in [0, 1], one of which the client applied to each image
    before it trained."""
    features: Sequence[str] | None = None
    """Names of the entries of a row: ``column`` of a number, ``column=value`` of a category."""
    manipulated: bool = False
    """Whether the attacker changed the model before the client got it."""
    selects: bool = False
    """Whether the attacker chooses the clients that take part."""
    cohort: Sequence[int] | None = None
    """Clients whose mean the update is, under secure aggregation; None: not known, or one client."""
    known: Known | None = None
    """Images of the attacker's own: for priors, and for rehearsals of the attack."""
    defend: Callable[[Update], Update] | None = None
    """The client's defense as public code, with a fresh memory; None: not known, or none that works alone."""
    rehearse: Callable[[Tensor, Tensor], Update] | None = None
    """The client's whole work as public code, training and defense: from pixels (B, C, H, W) in [0, 1] and
    labels (B,) to the update that it would send. None: not known, or all is said by ``defend``."""

    @classmethod
    def from_gradient(
        cls,
        model: nn.Module,
        gradients: Tensors,
        *,
        batch_size: int | None = None,
        num_classes: int | None = None,
        input_shape: Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        labels: Tensor | Sequence[int] | None = None,
        training: bool | None = None,
        defense: Sequence[Trace] | None = None,
        check: bool = True,
    ) -> Observation:
        """Return the observation of one gradient of ``model``, by parameter name or in parameter order.

        ``check`` raises ValueError if the sign is likely wrong (see `likely_mistake`).
        """
        seen = cls(
            model=model,
            update=_by_name(gradients, _trainable(model), who="Observation: update"),
            batch_size=batch_size,
            num_classes=num_classes,
            input_shape=None if input_shape is None else tuple(input_shape),
            mean=mean,
            std=std,
            labels=None if labels is None else torch.as_tensor(labels),
            training=training,
            defense=defense,
        )
        return _checked(seen, "Observation.from_gradient") if check else seen

    @classmethod
    def from_weights(
        cls,
        model: nn.Module,
        before: Tensors,
        after: Tensors,
        *,
        lr: float,
        local_steps: int,
        local_batch_size: int | None = None,
        batch_size: int | None = None,
        num_classes: int | None = None,
        input_shape: Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        labels: Tensor | Sequence[int] | None = None,
        training: bool | None = None,
        defense: Sequence[Trace] | None = None,
        check: bool = True,
    ) -> Observation:
        """Return the observation of a client that took ``local_steps`` steps of SGD with rate ``lr``.

        ``before`` and ``after`` are the weights, or whole state dicts: then the buffers count as sent.
        ``model`` gives the architecture and stays as it is. ``check`` raises ValueError if the two are
        likely swapped (see `likely_mistake`).
        """
        who = "Observation.from_weights"
        start, weights = copy.deepcopy(model), _parameters(model)
        old, old_buffers = _without_buffers(before, model, who=f"{who}: before")
        new, new_buffers = _without_buffers(after, model, who=f"{who}: after")
        old, new = _by_name(old, weights, who=f"{who}: before"), _by_name(new, weights, who=f"{who}: after")
        start.load_state_dict(old | old_buffers, strict=False)
        seen = cls.from_delta(
            start,
            {name: new[name].double() - old[name].double() for name in _trainable(model)},
            lr=lr,
            local_steps=local_steps,
            local_batch_size=local_batch_size,
            batch_size=batch_size,
            num_classes=num_classes,
            input_shape=input_shape,
            mean=mean,
            std=std,
            labels=labels,
            training=training,
            defense=defense,
            check=check,
        )
        return replace(seen, buffers=new_buffers or None)

    @classmethod
    def from_delta(
        cls,
        model: nn.Module,
        delta: Tensors,
        *,
        lr: float,
        local_steps: int,
        local_batch_size: int | None = None,
        batch_size: int | None = None,
        num_classes: int | None = None,
        input_shape: Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        labels: Tensor | Sequence[int] | None = None,
        training: bool | None = None,
        defense: Sequence[Trace] | None = None,
        check: bool = True,
    ) -> Observation:
        """Return the observation of a weight difference, after minus before; else as `from_weights`."""
        who = "Observation.from_delta"
        if not (lr > 0 and local_steps >= 1):
            raise ValueError(f"{who}: expected lr > 0 and local_steps >= 1, got {lr} and {local_steps}")
        seen = cls.from_gradient(
            model,
            delta,
            batch_size=batch_size,
            num_classes=num_classes,
            input_shape=input_shape,
            mean=mean,
            std=std,
            labels=labels,
            training=training,
            defense=defense,
            check=False,
        )
        seen = replace(seen, lr=lr, local_steps=local_steps, local_batch_size=local_batch_size)
        return _checked(seen, who) if check else seen

    @property
    def threat(self) -> Threat:
        """Threat model of an attacker who uses all of this.

        Granted labels are stated beside it: the letters do not tell them from inferred ones.
        """
        if self.manipulated:
            return Threat.H if self.selects else Threat.F if self.known is None else Threat.G
        if self.buffers:
            return Threat.E
        if self.known is not None:
            return Threat.D
        trained = (self.lr, self.local_steps, self.local_batch_size, self.training, self.defense)
        if any(fact is not None for fact in trained) or self.history:
            return Threat.C
        task = (self.batch_size, self.num_classes, self.input_shape, self.mean, self.std)
        return Threat.B if any(fact is not None for fact in task) else Threat.A

    def likely_mistake(self) -> str | None:
        """Return in words why the update's sign or size is likely wrong; None if nothing speaks against it.

        Softmax cross-entropy gives the output layer's bias the gradient ``mean(p - y)``. It sums to zero,
        and only classes of the batch can be below zero in it; with the wrong sign, all others are. Without
        a bias the rows of the weight tell the same if no feature is negative. Pruning or noise breaks the
        sum, and then nothing is said. The size is known for one sample, whose features are the rows of the
        weight divided by those of the bias; of several samples the bias bounds it.
        """
        rows = self._output_rows()
        return None if rows is None else self._wrong_sign(rows) or self._wrong_size(rows)

    def _wrong_sign(self, rows: Tensor) -> str | None:
        size, classes = rows.abs(), len(rows)
        counts = size > 10 * _BALANCE / classes**0.5 * size.max()
        above = (counts & (rows > 0)).any(dim=1)
        below = (counts & (rows < 0)).any(dim=1) & ~above
        if self.labels is not None:
            absent = torch.ones_like(above)
            present = self.labels.long().flatten().cpu()
            absent[present[(present >= 0) & (present < classes)]] = False
            wrong = bool((below & absent).any() and not (above & absent).any())
        else:
            wrong = self.batch_size is not None and bool(below.sum() > self.batch_size >= above.sum())
        if not wrong:
            return None
        cause = (
            "a weight difference was likely passed as a gradient: use Observation.from_weights"
            if self.local_steps is None
            else "before and after are likely swapped, or a gradient was passed as a weight difference"
        )
        granted = "batch_size" if self.labels is None else "labels"
        return (
            f"{int(below.sum())} of {classes} classes have the sign in the output layer that only classes of "
            f"the batch can have; {cause} (or {granted} is wrong, or the loss is no plain cross-entropy)"
        )

    def _wrong_size(self, rows: Tensor) -> str | None:
        """Return in words that the update is too large or too small; None if it is not, or nothing tells."""
        steps = self.local_steps
        if rows.shape[1] > 1 or (steps or 1) > 1 or (self.defense is not None and len(self.defense)):
            return None
        found = self._scale_of_one_sample(rows.flatten())
        rate = 1.0 if steps is None else self.lr or 1.0
        size = rows.abs().sum().item() / 2
        if found is None and size > rate * _CLEAR:
            found = size  # a mean of p - y is never larger than one
        if found is None or rate / _CLEAR < found < rate * _CLEAR:
            return None
        if steps is None:
            return (
                f"the update is {found:.3g} times as large as a gradient of the mean loss; a weight "
                "difference was likely passed as a gradient: use Observation.from_weights (or the update was "
                "clipped, or the loss is a sum, weighted, or no plain cross-entropy)"
            )
        return (
            f"the weight difference is that of a step with lr={found:.3g}, not {rate:g}; lr or local_steps "
            "is likely wrong (or the update was clipped, or the loss is no plain cross-entropy)"
        )

    def _scale_of_one_sample(self, bias: Tensor) -> float | None:
        """Return the factor between the gradient of the bias and ``p - y`` of the one sample behind it.

        None unless the whole output layer agrees that there is one sample, and with that factor. Of two
        classes any factor would agree.
        """
        name = self._output_name()
        if name is None or len(bias) < 3:
            return None
        parameters = dict(self.model.named_parameters())
        layer, old = name.removesuffix("weight"), parameters[name].detach().double().cpu()
        weight = self.update[name].detach().double().cpu()
        start = parameters[f"{layer}bias"].detach().double().cpu()
        strongest = int(bias.abs().argmax())
        sign = -1.0 if self.local_steps is not None else 1.0
        features = sign * weight[strongest] / bias[strongest]
        if not _is_close(sign * weight, torch.outer(bias, features)):
            return None
        expected = torch.softmax(old @ features + start, dim=0)
        expected[bias.argmin()] -= 1
        factor = float(bias @ expected / (expected @ expected).clamp_min(1e-30))
        clear = factor > 0 and expected.abs().max() > _SURE and _is_close(bias, factor * expected)
        return factor if clear else None

    def _output_name(self) -> str | None:
        matrices = [name for name, p in self.model.named_parameters() if p.ndim == 2 and name in self.update]
        fitting = [name for name in matrices if self.num_classes in (None, len(self.update[name]))]
        return fitting[-1] if fitting else None

    def _output_rows(self) -> Tensor | None:
        """Return the gradient of the output layer's bias (classes, 1) or else of its weight.

        None: there is none whose signs tell anything.
        """
        name = self._output_name()
        if name is None:
            return None
        weight = self.update[name].detach().double().cpu()
        bias = self.update.get(f"{name.removesuffix('weight')}bias")
        rows = weight if bias is None else bias.detach().double().cpu().view(-1, 1)
        if len(rows) != len(weight) or (bias is None and weight.shape[1] < _FEATURES):
            return None
        # both sum to zero over the classes, but for rounding
        balanced = all(
            bool(part.any()) and part.sum(dim=0).abs().sum() <= _BALANCE * part.abs().sum()
            for part in (weight, rows)
        )
        if not balanced:
            return None
        return rows if self.local_steps is None else -rows


def _is_close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).norm() <= _BALANCE * expected.norm())


def _checked(seen: Observation, who: str) -> Observation:
    if mistake := seen.likely_mistake():
        raise ValueError(f"{who}: {mistake}; check=False takes it as it is")
    return seen


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that have gradients; of a model that is frozen as a whole, all."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return {name: p for name, p in _parameters(model).items() if name in trained or not trained}


def _without_buffers(tensors: Tensors, model: nn.Module, *, who: str) -> tuple[Tensors, dict[str, Tensor]]:
    """Split a state dict into weights and buffers."""
    if not isinstance(tensors, Mapping):
        return tensors, {}
    own = dict(model.named_buffers())
    found = {name: tensors[name] for name in own if name in tensors}
    rest = {name: tensor for name, tensor in tensors.items() if name not in own}
    return rest, _by_name(found, {name: own[name] for name in found}, who=who)


def _by_name(tensors: Tensors, like: Mapping[str, Tensor], *, who: str) -> dict[str, Tensor]:
    """Return one tensor for each of ``like``, on its device and of its type."""
    if not isinstance(tensors, Mapping):
        given = list(tensors)
        if len(given) != len(like):
            raise ValueError(f"{who}: expected {len(like)} tensors, one for each parameter, got {len(given)}")
        tensors = dict(zip(like, given, strict=True))
    missing, strange = sorted(like.keys() - tensors.keys()), sorted(tensors.keys() - like.keys())
    if missing or strange:
        raise ValueError(
            f"{who}: expected exactly the model's names {list(like)}, "
            f"got {strange or 'nothing'} too many, and {missing or 'nothing'} is missing"
        )
    found = {name: torch.as_tensor(tensors[name]).detach() for name in like}
    for name, tensor in found.items():
        if tensor.shape != like[name].shape:
            raise ValueError(
                f"{who}: {name}: expected shape {tuple(like[name].shape)}, got {tuple(tensor.shape)}"
            )
    return {name: tensor.to(like[name]) for name, tensor in found.items()}


class Manipulated(NamedTuple):
    """A model as a malicious server sends it."""

    model: nn.Module
    """A copy with other weights, and maybe with other layers."""
    extensions: Mapping[str, dict[str, object]]
    """Settings of the added layers by name, as an order carries them."""


@dataclass(frozen=True)
class Truth:
    """Samples that the client trained on; only scores may see them."""

    inputs: Tensor
    """Pixels in [0, 1] (N, C, H, W), before normalisation; or tokens (N, L), before any were hidden."""
    labels: Tensor
    trained: Tensor | None = None
    """The pixels that the update was computed on, where a defense put others in the inputs' place."""

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return the one sequence that was trained on, and which of its tokens (L,) are labels.

        Labels (1, L) are its tokens; a label below 0 is no token, and where the inputs are tokens as well
        (those of a masked language model, which is asked for a few), theirs stands there.
        """
        if self.labels.ndim != 2 or len(self.labels) != 1:
            raise ValueError(f"Truth: one sequence has labels (1, L), these are {tuple(self.labels.shape)}")
        labels, inputs = self.labels[0].cpu(), self.inputs.cpu()
        tokens = labels
        if inputs.shape == self.labels.shape and not inputs.is_floating_point():
            tokens = torch.where(labels < 0, inputs[0], labels)
        there = tokens >= 0
        return tokens[there], (labels >= 0)[there]


@dataclass(frozen=True)
class Records:
    """Samples in the clear: pixels in [0, 1] (N, C, H, W) or rows (N, F), and labels (N,)."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: Tensor) -> Records:
        """Return the samples at indices or under a mask."""
        return Records(self.inputs[chosen], self.labels[chosen])


@dataclass(frozen=True)
class Shadow:
    """A model that the attacker trained in the run's settings on samples of its own and some candidates."""

    model: nn.Module
    members: Tensor
    """Which candidates it was trained on (N,)."""


@dataclass(frozen=True)
class Inquiry:
    """Knowledge of an attacker who asks which of the candidates were trained on."""

    candidates: Records
    final: nn.Module
    """The model after training."""
    rounds: Sequence[Observation] = ()
    """Rounds that the attacker saw, oldest first; none if it has the final model alone."""
    population: Records | None = None
    """Public samples like the candidates, on which nobody trained."""
    shadows: Sequence[Shadow] = ()
    defense: Sequence[Trace] = ()
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    rewrites: Sequence[Callable[[Tensor], Tensor]] = ()


@dataclass(frozen=True)
class PropertyQuestion:
    """Knowledge of an attacker who asks whether the samples behind an update have a property."""

    seen: Observation
    examples: Sequence[Update]
    """Updates of public samples from the same model, some of which have the property."""
    answers: Tensor
    """Which of the examples have it (N,)."""

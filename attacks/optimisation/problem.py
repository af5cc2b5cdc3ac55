"""One observation as a gradient-matching problem: known, assumed and unknown quantities."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attacks.knowledge import travelled
from attacks.optimisation.batch_statistics import use_batch_statistics
from attacks.optimisation.between import Between
from attacks.optimisation.local_training import LocalTraining, plan_local_training
from attacks.optimisation.withheld import Withheld
from attacks.rounds.course import Rounds
from fl_app.types import Observation, Update

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True, eq=False)
class Problem:
    """A gradient, and the model that made it."""

    model: nn.Module
    """A copy in the client's mode; its forward pass changes nothing."""
    names: tuple[str, ...]
    """The parameters that are matched, in the order of ``target``."""
    target: Tensor
    """The observed gradient (n,)."""
    sent: Tensor
    """Mask of the sent entries (n,)."""
    batch_size: int
    input_shape: tuple[int, int, int]
    mean: Tensor
    std: Tensor
    """Per-channel normalisation, shaped (C, 1, 1)."""
    notes: tuple[str, ...]
    local: LocalTraining | None = None
    """The client's local steps, if they are to be unrolled; the target is then their mean gradient."""
    withheld: Withheld | None = None
    """Knowledge of the unsent entries."""
    trained: Tensor | None = None
    """The only entries that the client's steps move (n,); None: all.

    They are told by what is not 0: a trained entry whose change came out at exactly 0 counts as not
    trained. That does no harm, for it did not move."""
    between: Between | None = None
    """The way of the weights, if local steps are matched at a model on it."""
    rounds: Rounds | None = None
    """The client's earlier rounds and this one, if they are matched together; the target has them all."""

    @property
    def device(self) -> torch.device:
        return self.target.device

    def double(self) -> Problem:
        """Return the problem in double precision; the model is changed in place."""
        target, mean, std = self.target.double(), self.mean.double(), self.std.double()
        return replace(self, model=self.model.double(), target=target, mean=mean, std=std)

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each matched parameter."""
        parameters = dict(self.model.named_parameters())
        return [parameters[name].numel() for name in self.names]

    def to_inputs(self, pixels: Tensor) -> Tensor:
        """Return the model's inputs for pixels in [0, 1]."""
        return (pixels - self.mean) / self.std

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Return the pixels that the model sees as ``inputs``, in [0, 1] for those of photographs."""
        return inputs * self.std + self.mean


def as_problem(obs: Observation, *, who: str, unroll: bool = False) -> Problem:
    """Read an observation, naming every assumption; ``who`` names the attack in errors.

    ``unroll``: do not treat an update of several local steps as that of one.
    """
    notes: list[str] = []
    shape = _image_shape(obs, who)
    model = _client_model(obs, notes)
    parameters = dict(model.named_parameters())
    names = _matched_names(obs, parameters, notes, who)
    like = parameters[names[0]]
    batch_size = _batch_size(obs, notes, who)
    local = None
    if obs.local_steps is not None:
        local, assumed = plan_local_training(obs, batch_size, who=who)
        if unroll:
            notes += assumed
        else:
            notes.append(
                f"{obs.local_steps} local steps matched as one: gradient taken as -update / (lr * steps)"
            )
    gradient = obs.update if local is None else {k: delta / local.scale for k, delta in obs.update.items()}
    mean, std = _normalisation(obs, shape[0], like, notes, who)
    return Problem(
        model=model,
        names=names,
        target=flatten_update(gradient, names).to(like),
        sent=_sent(obs, names, notes).to(like.device),
        batch_size=batch_size,
        input_shape=shape,
        mean=mean,
        std=std,
        notes=tuple(notes),
        local=local if unroll else None,
    )


def flatten_update(update: Update, names: tuple[str, ...]) -> Tensor:
    """Return the named entries as one vector."""
    return torch.cat([update[name].detach().reshape(-1) for name in names])


def _image_shape(obs: Observation, who: str) -> tuple[int, int, int]:
    if obs.input_shape is None or len(obs.input_shape) != 3:
        raise ValueError(f"{who}: the observation must grant input_shape (C, H, W), got {obs.input_shape}")
    channels, height, width = obs.input_shape
    return channels, height, width


def _client_model(obs: Observation, notes: list[str]) -> nn.Module:
    model = copy.deepcopy(obs.model)
    if obs.training is None:
        notes.append("the client's mode is not granted: eval mode assumed")
    else:
        notes.append(f"matched in the client's mode, {'train' if obs.training else 'eval'}")
    model.train(bool(obs.training))
    if obs.training:
        use_batch_statistics(model)
        for module in model.modules():
            if isinstance(module, _DROPOUT) and module.p > 0:
                module.eval()
                notes.append("the client's dropout masks are unknown: matched without dropout")
    elif obs.buffers:
        notes.append("matched with the buffers that the client sent")
        model.load_state_dict({name: buffer.detach() for name, buffer in obs.buffers.items()}, strict=False)
    notes[:] = dict.fromkeys(notes)
    return model.requires_grad_(True)


def _matched_names(
    obs: Observation, parameters: dict[str, nn.Parameter], notes: list[str], who: str
) -> tuple[str, ...]:
    for name, entries in obs.update.items():
        if name not in parameters or entries.shape != parameters[name].shape:
            expected = tuple(parameters[name].shape) if name in parameters else "no such parameter"
            raise ValueError(
                f"{who}: update[{name!r}] has shape {tuple(entries.shape)}, the model: {expected}"
            )
        if not entries.isfinite().all():
            raise ValueError(
                f"{who}: update[{name!r}] must be finite, got {int((~entries.isfinite()).sum())} that are not"
            )
    names = tuple(name for name in parameters if name in obs.update)
    if not names:
        raise ValueError(f"{who}: the update must have at least one of {list(parameters)}, got none")
    if len(names) < len(parameters):
        notes.append(f"{len(names)} of {len(parameters)} parameter tensors are in the update and matched")
    return names


def _normalisation(
    obs: Observation, channels: int, like: Tensor, notes: list[str], who: str
) -> tuple[Tensor, Tensor]:
    if obs.mean is None or obs.std is None:
        notes.append("the normalisation is not granted: the model is taken to see pixels in [0, 1]")
        mean, std = [0.0] * channels, [1.0] * channels
    else:
        mean, std = list(obs.mean), list(obs.std)
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise ValueError(f"{who}: mean and std must have {channels} entries, std above 0, got {mean}, {std}")
    return like.new_tensor(mean).view(-1, 1, 1), like.new_tensor(std).view(-1, 1, 1)


def _sent(obs: Observation, names: tuple[str, ...], notes: list[str]) -> Tensor:
    if not any(obs.update[name].any() for name in names):
        notes.append("every entry of the update is zero: there is nothing to match")
    return torch.cat([travelled(obs, name).flatten() for name in names])


def _batch_size(obs: Observation, notes: list[str], who: str) -> int:
    size = obs.batch_size
    if size is None and obs.labels is not None:
        return len(obs.labels)
    if size is None:
        notes.append("the batch size is not granted: one sample assumed")
        return 1
    if size < 1:
        raise ValueError(f"{who}: batch_size must be at least 1, got {size}")
    return size

"""Transforms of an update before it leaves the client: pure, composable, with explicit state."""

from fl_app.transforms.aligned import prune_aligned
from fl_app.transforms.common_signs import send_common_signs, send_signs_at_locations
from fl_app.transforms.dual import prune_dual
from fl_app.transforms.feedback import corrected, error_feedback, norm, residual_norm
from fl_app.transforms.flat_state import flatten_state, unflatten_state
from fl_app.transforms.gaussian_mechanism import clip_and_noise
from fl_app.transforms.held_back import accumulate, skip_first
from fl_app.transforms.low_rank import keep_rank
from fl_app.transforms.noise import add_gaussian, add_laplace
from fl_app.transforms.noisy_support import clip_and_noise_on_support
from fl_app.transforms.outpost import perturb_outpost
from fl_app.transforms.residual_bound import residual_bound
from fl_app.transforms.rounding import round_bf16, round_fp16, round_int8
from fl_app.transforms.sequence import chain
from fl_app.transforms.signs import take_sign
from fl_app.transforms.smallest import drop_smallest
from fl_app.transforms.topk import keep_topk
from fl_app.transforms.transform import State, Transform, stateless
from fl_app.transforms.unchanged import identity

__all__ = [
    "State",
    "Transform",
    "accumulate",
    "add_gaussian",
    "add_laplace",
    "chain",
    "clip_and_noise",
    "clip_and_noise_on_support",
    "corrected",
    "drop_smallest",
    "error_feedback",
    "flatten_state",
    "identity",
    "keep_rank",
    "keep_topk",
    "norm",
    "perturb_outpost",
    "prune_aligned",
    "prune_dual",
    "residual_bound",
    "residual_norm",
    "round_bf16",
    "round_fp16",
    "round_int8",
    "send_common_signs",
    "send_signs_at_locations",
    "skip_first",
    "stateless",
    "take_sign",
    "unflatten_state",
]

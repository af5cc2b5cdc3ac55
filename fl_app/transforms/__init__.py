"""What may happen to an update before it leaves a client: pure, composable, explicit state."""

from fl_app.transforms.dual import prune_dual
from fl_app.transforms.feedback import error_feedback, residual_norm
from fl_app.transforms.sequence import chain
from fl_app.transforms.topk import keep_topk
from fl_app.transforms.transform import State, Transform, stateless
from fl_app.transforms.unchanged import identity

__all__ = [
    "State",
    "Transform",
    "chain",
    "error_feedback",
    "identity",
    "keep_topk",
    "prune_dual",
    "residual_norm",
    "stateless",
]

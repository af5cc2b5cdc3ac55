"""Signs on a common random support as one vector a client, for secure aggregation."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.sketches import picked_coordinates
from fl_app.transforms import error_feedback as with_feedback
from fl_app.transforms import send_signs_at_locations


def secure_signs(share: float = 0.1, error_feedback: bool = True, decay: float = 1.0) -> Defense:
    """Send the signs of a random ``share`` of all entries as a vector, with error feedback, to `FLBasic`.

    The order names the seed of the positions. Under ``secagg=on`` the server learns the sum over the
    clients of a round, and with ``dp=client`` a noisy one; without either, each client's signs.
    """
    signs = with_feedback(send_signs_at_locations(), enabled=error_feedback, decay=decay)
    return Defense(
        transform=signs,
        scheme=picked_coordinates(share),
        server={"share": share},
        baseline="fl_std",
        trained=(),
    )

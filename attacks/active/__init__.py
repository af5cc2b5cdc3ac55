"""Attacks by a server that manipulates the model it sends, and a client's checks against them."""

from attacks.active.detect import Finding, inspect_model
from attacks.active.imprint import imprint
from attacks.active.imprint_block import ImprintBlock, add_imprint
from attacks.active.trap_weights import trap_weights

__all__ = ["Finding", "ImprintBlock", "add_imprint", "imprint", "inspect_model", "trap_weights"]

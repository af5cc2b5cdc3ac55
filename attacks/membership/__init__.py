"""Attacks on membership: which of some candidates a client trained on."""

from attacks.membership.inference import infer_members

__all__ = ["infer_members"]

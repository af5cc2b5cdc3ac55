"""Attacks on properties: whether the samples behind an update hold a class, or mostly one sex."""

from attacks.attributes.inference import infer_property

__all__ = ["infer_property"]

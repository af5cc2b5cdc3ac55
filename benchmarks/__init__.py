"""Ratios against peers and limits, each measured in one process, one after the other."""

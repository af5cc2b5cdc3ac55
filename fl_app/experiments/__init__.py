"""Experiments of many runs: a job with its baseline, sweeps, studies of the papers, and the site."""

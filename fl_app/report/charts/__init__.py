"""Figures of a report: plots, picture tiles and the canvas they are drawn on."""

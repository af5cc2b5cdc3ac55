"""Attacks that search for inputs whose gradient is the observed one: recipes on one loop."""

from attacks.optimisation.dlg import dlg, idlg
from attacks.optimisation.gradinversion import gradinversion
from attacks.optimisation.inverting_gradients import inverting_gradients

__all__ = ["dlg", "gradinversion", "idlg", "inverting_gradients"]

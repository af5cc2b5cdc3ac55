"""Attacks that search for inputs whose gradient is the observed one: recipes on one loop."""

from attacks.optimisation.dlg import dlg, idlg
from attacks.optimisation.fedleak import fedleak
from attacks.optimisation.gradinversion import gradinversion
from attacks.optimisation.inverting_gradients import inverting_gradients
from attacks.optimisation.sme import sme

__all__ = ["dlg", "fedleak", "gradinversion", "idlg", "inverting_gradients", "sme"]

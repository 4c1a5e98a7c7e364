"""Tests whether weights or activations have one peak or two."""

from jaxeff.robustness.modality._bimodality import UNIMODAL, Bimodality, Binarized, bimodality
from jaxeff.robustness.modality._one_peak import one_peak_pvalue
from jaxeff.robustness.modality._peaks import Peaks, peaks

__all__ = ["UNIMODAL", "Bimodality", "Binarized", "Peaks", "bimodality", "one_peak_pvalue", "peaks"]

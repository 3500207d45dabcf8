"""Curvature and margins of a network, measured once or during training."""

from calibrant.curvature.attacks import dual_norm, pgd
from calibrant.curvature.bounds import Bound, interpolation_bounds, population_bounds
from calibrant.curvature.correlation import Correlations, correlation, correlations
from calibrant.curvature.jacobians import jacobian_norms
from calibrant.curvature.margins import (
    logit_norm,
    margin_tail,
    margins,
    predicted_margins,
    robust_margins,
)
from calibrant.curvature.parts import per_class, per_layer
from calibrant.curvature.probe import MEASURES, Probe, edge
from calibrant.curvature.products import Operator, gradient, operator
from calibrant.curvature.sharpness import batch_sharpness, sam_sharpness
from calibrant.curvature.spectrum import (
    Density,
    spectral_density,
    top_eigenvalues,
    top_eigenvectors,
)
from calibrant.curvature.trace import Estimate, trace

__all__ = [
    "MEASURES",
    "Bound",
    "Correlations",
    "Density",
    "Estimate",
    "Operator",
    "Probe",
    "batch_sharpness",
    "correlation",
    "correlations",
    "dual_norm",
    "edge",
    "gradient",
    "interpolation_bounds",
    "jacobian_norms",
    "logit_norm",
    "margin_tail",
    "margins",
    "operator",
    "per_class",
    "per_layer",
    "pgd",
    "population_bounds",
    "predicted_margins",
    "robust_margins",
    "sam_sharpness",
    "spectral_density",
    "top_eigenvalues",
    "top_eigenvectors",
    "trace",
]

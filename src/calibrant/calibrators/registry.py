"""All calibrators by name, the simplest of a kind first."""

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.centered_isotonic import CenteredIsotonic
from calibrant.calibrators.ensemble import EnsembleTemperature
from calibrant.calibrators.focal_temperature import FocalTemperatureScaling
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.isotonic import IsotonicRegression, OrderPreservingIsotonic
from calibrant.calibrators.logistic import BetaCalibration, PlattScaling, QuadraticScaling
from calibrant.calibrators.scaling_binning import ScalingBinning
from calibrant.calibrators.structured import (
    FocalStructuredMatrixScaling,
    FocalStructuredVectorScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
)
from calibrant.calibrators.temperature import Identity, TemperatureScaling
from calibrant.calibrators.vector_matrix import DirichletCalibration, MatrixScaling, VectorScaling
from calibrant.calibrators.venn_abers import VennAbers

CALIBRATORS: dict[str, type[Calibrator]] = {
    "identity": Identity,
    "temperature": TemperatureScaling,
    "focal_temperature": FocalTemperatureScaling,
    "ensemble_temperature": EnsembleTemperature,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "structured_vector": StructuredVectorScaling,
    "structured_matrix": StructuredMatrixScaling,
    "focal_structured_vector": FocalStructuredVectorScaling,
    "focal_structured_matrix": FocalStructuredMatrixScaling,
    "dirichlet": DirichletCalibration,
    "platt": PlattScaling,
    "beta": BetaCalibration,
    "quadratic": QuadraticScaling,
    "isotonic": IsotonicRegression,
    "centered_isotonic": CenteredIsotonic,
    "irm": OrderPreservingIsotonic,
    "venn_abers": VennAbers,
    "histogram": HistogramBinning,
    "scaling_binning": ScalingBinning,
}

"""All calibrators by name, the simplest of a kind first."""

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.centered_isotonic import CenteredIsotonic
from calibrant.calibrators.ensemble import EnsembleTemperature
from calibrant.calibrators.focal_temperature import FocalTemperatureScaling
from calibrant.calibrators.gap_temperature import GapTemperatureScaling
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.isotonic import IsotonicRegression, OrderPreservingIsotonic
from calibrant.calibrators.kernel_regression import KernelCalibration
from calibrant.calibrators.logistic import BetaCalibration, PlattScaling, QuadraticScaling
from calibrant.calibrators.scaling_binning import ScalingBinning
from calibrant.calibrators.spline import SplineCalibration, TopLabelSpline
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
    "gap_temperature": GapTemperatureScaling,
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
    "spline": SplineCalibration,
    "top_label_spline": TopLabelSpline,
    "isotonic": IsotonicRegression,
    "centered_isotonic": CenteredIsotonic,
    "irm": OrderPreservingIsotonic,
    "kernel": KernelCalibration,
    "venn_abers": VennAbers,
    "histogram": HistogramBinning,
    "scaling_binning": ScalingBinning,
}

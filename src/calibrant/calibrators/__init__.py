"""Calibrators: `fit(Predictions)` gives a frozen map from logits to log-probabilities."""

from calibrant.calibrators.base import Calibrator, Fit
from calibrant.calibrators.blend import Blend
from calibrant.calibrators.centered_isotonic import CenteredIsotonic
from calibrant.calibrators.ensemble import EnsembleTemperature
from calibrant.calibrators.fit_checks import fit_remarks
from calibrant.calibrators.focal_map import (
    focal_map,
    focal_proper_loss,
    inverse_focal_map,
    raising_threshold,
)
from calibrant.calibrators.focal_temperature import FocalTemperatureScaling, focal_landscape
from calibrant.calibrators.gap_temperature import GapTemperatureScaling
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.isotonic import IsotonicRegression, OrderPreservingIsotonic
from calibrant.calibrators.kernel_regression import KernelCalibration
from calibrant.calibrators.logistic import BetaCalibration, PlattScaling, QuadraticScaling
from calibrant.calibrators.loss_split import LossSplit, split_loss
from calibrant.calibrators.multi_label import MultiLabelCalibrator
from calibrant.calibrators.multicalibration import MultiCalibrator
from calibrant.calibrators.prior_estimation import PriorEstimate, estimate_prior
from calibrant.calibrators.prior_shift import PriorShift
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.calibrators.scaling_binning import CalibrationErrorEstimate, ScalingBinning
from calibrant.calibrators.selection import select
from calibrant.calibrators.selection_result import Candidate, Selection
from calibrant.calibrators.slice_estimates import CrossValidation
from calibrant.calibrators.sliced import SlicedCalibrator, SliceSummary
from calibrant.calibrators.spline import SplineCalibration, TopLabelSpline
from calibrant.calibrators.storage import load, save
from calibrant.calibrators.structured import (
    FocalStructuredMatrixScaling,
    FocalStructuredVectorScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
)
from calibrant.calibrators.temperature import Identity, TemperatureScaling
from calibrant.calibrators.vector_matrix import DirichletCalibration, MatrixScaling, VectorScaling
from calibrant.calibrators.venn_abers import VennAbers

__all__ = [
    "CALIBRATORS",
    "BetaCalibration",
    "Blend",
    "CalibrationErrorEstimate",
    "Calibrator",
    "Candidate",
    "CenteredIsotonic",
    "CrossValidation",
    "DirichletCalibration",
    "EnsembleTemperature",
    "Fit",
    "FocalStructuredMatrixScaling",
    "FocalStructuredVectorScaling",
    "FocalTemperatureScaling",
    "GapTemperatureScaling",
    "HistogramBinning",
    "Identity",
    "IsotonicRegression",
    "KernelCalibration",
    "LossSplit",
    "MatrixScaling",
    "MultiCalibrator",
    "MultiLabelCalibrator",
    "OrderPreservingIsotonic",
    "PlattScaling",
    "PriorEstimate",
    "PriorShift",
    "QuadraticScaling",
    "ScalingBinning",
    "Selection",
    "SliceSummary",
    "SlicedCalibrator",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "TopLabelSpline",
    "VectorScaling",
    "VennAbers",
    "estimate_prior",
    "fit_remarks",
    "focal_landscape",
    "focal_map",
    "focal_proper_loss",
    "inverse_focal_map",
    "load",
    "raising_threshold",
    "save",
    "select",
    "split_loss",
]

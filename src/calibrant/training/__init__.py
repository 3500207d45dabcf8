"""Training: one loop for every method; killed at any instant and resumed, the same bytes."""

from calibrant.training.checkpoint import DiskFullError
from calibrant.training.distributed import ManyProcesses, ProcessGroup, start
from calibrant.training.interrupts import InterruptedTrainingError
from calibrant.training.loggers import LOGGERS, RunLogger
from calibrant.training.loop import Loop
from calibrant.training.predict import predict
from calibrant.training.progress import DivergedError
from calibrant.training.recipe import RECIPES, Recipe
from calibrant.training.results import Trained
from calibrant.training.run import train
from calibrant.training.runtime import Runtime

__all__ = [
    "LOGGERS",
    "RECIPES",
    "DiskFullError",
    "DivergedError",
    "InterruptedTrainingError",
    "Loop",
    "ManyProcesses",
    "ProcessGroup",
    "Recipe",
    "RunLogger",
    "Runtime",
    "Trained",
    "predict",
    "start",
    "train",
]

"""What the largest eigenvalue costs, compared with curvlinops, and how the cost grows."""

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from benchmarks.inputs import SEED
from benchmarks.measure import (
    Line,
    Section,
    alternate,
    best_of,
    extra_memory,
    in_fresh_process,
    seconds,
)
from calibrant import models
from calibrant.curvature.products import Matrix, operator
from calibrant.curvature.spectrum import BASIS, top_eigenvalues
from calibrant.curvature.weights import random_direction
from calibrant.losses import cross_entropy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from curvlinops import GGNLinearOperator, HessianLinearOperator

IMAGES, SIZE, TOLERANCE = 1000, 16, 1e-3
RIVALS = {"hessian": HessianLinearOperator, "gauss_newton": GGNLinearOperator}
# Share of curvlinops' time that ours may take.
MOST: dict[Matrix, float] = {"hessian": 0.65, "gauss_newton": 0.7}
ABOUT = f"""Largest eigenvalue of the matrix of cross entropy for ResNet-8 in evaluation mode. It is
measured on {IMAGES:,} random images of {SIZE}x{SIZE} in float32, to a relative tolerance of
{TOLERANCE:g}. Both
sides use scipy's `eigsh` with the same first vector and a basis of {BASIS}; their values must
agree to twice the tolerance. curvlinops uses its fastest batch size of 64, 250 and {IMAGES:,},
without its check of the order of data. calibrant keeps the graphs of all images between products,
up to 2 GB; "recomputed" makes them for each product. Memory is the growth of a fresh process. The
last rows are products with the Hessian: with linear cost, twice as much data takes 2x."""


def network(name: str = "resnet8", **settings: object) -> nn.Module:
    """The same network each time."""
    model = models.build(name, classes=10, shape=(3, SIZE, SIZE), seed=SEED, **settings)
    return model.eval()


def images(n: int = IMAGES) -> tuple[Tensor, Tensor]:
    """Noise with labels."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(n, 3, SIZE, SIZE, generator=generator)
    return inputs, torch.randint(10, (n,), generator=generator)


def ours(model: nn.Module, matrix: Matrix, **options: int) -> float:
    """Our largest eigenvalue."""
    data = images()
    found = top_eigenvalues(
        model, cross_entropy, data, matrix=matrix, tolerance=TOLERANCE, seed=SEED, **options
    )
    return float(found)


def rival_operator(model: nn.Module, matrix: Matrix, batch: int):
    """The matrix of curvlinops as scipy sees it."""
    inputs, labels = images()
    batches = list(zip(inputs.split(batch), labels.split(batch), strict=True))
    parameters = [each for each in model.parameters() if each.requires_grad]
    made = RIVALS[matrix](
        model, nn.CrossEntropyLoss(), parameters, batches, check_deterministic=False
    )
    return made.to_scipy()


def rival(model: nn.Module, matrix: Matrix, batch: int) -> float:
    """The largest eigenvalue by curvlinops."""
    found = rival_operator(model, matrix, batch)
    start = random_direction(found.shape[0], SEED).numpy().astype(found.dtype)
    (value,) = eigsh(
        found, 1, which="LA", v0=start, ncv=BASIS, tol=TOLERANCE, return_eigenvectors=False
    )
    return float(value)


def fastest_batch(model: nn.Module, matrix: Matrix) -> int:
    """Examples of a batch with which a product of curvlinops is fastest."""
    took = {}
    for batch in (64, 250, IMAGES):
        found = rival_operator(model, matrix, batch)
        vector = np.ones(found.shape[0], dtype=found.dtype)
        took[batch] = best_of(lambda found=found, vector=vector: found @ vector, repeats=5)
    return min(took, key=took.__getitem__)


def product(model: nn.Module, n: int) -> Callable[[], Tensor]:
    """One product with the Hessian over n images."""
    curvature = operator(model, cross_entropy, images(n))
    vector = random_direction(curvature.size, SEED)
    return lambda: curvature.product(vector)


def run(*, clock: Callable[[], float] = time.perf_counter) -> Section:
    """Measure both matrices, then the growth."""
    section = Section("Curvature", ABOUT)
    model = network()
    for matrix in RIVALS:
        batch = fastest_batch(model, matrix)
        values = {}

        def mine(matrix: Matrix = matrix, values: dict[str, float] = values) -> None:
            values["ours"] = ours(model, matrix)

        def theirs(
            matrix: Matrix = matrix, batch: int = batch, values: dict[str, float] = values
        ) -> None:
            values["rival"] = rival(model, matrix, batch)

        times = alternate(mine, theirs, repeats=3, clock=clock)
        what = f"{matrix}: largest eigenvalue, curvlinops in batches of {batch}"
        section.times(what, *times, most=MOST[matrix])
        gap = abs(values["ours"] / values["rival"] - 1)
        what = f"{matrix}: difference of the values, relative to {values['rival']:.4g}"
        section.below(what, gap, "", goal=2 * TOLERANCE)
        fresh_graphs = seconds(lambda matrix=matrix: ours(model, matrix, keep=0), clock=clock)
        section.times(
            f"{matrix}: largest eigenvalue, recomputed", fresh_graphs, times[1], most=None
        )
        kept, fresh, held = (
            in_fresh_process("benchmarks.curvature_cost", side, matrix, str(batch))[0]
            for side in ("kept", "fresh_graphs", "curvlinops")
        )
        for what, mine in {"memory": kept, "memory, recomputed": fresh}.items():
            line = Line(f"{matrix}: {what}", mine, held, "MB", f"{mine / held:.2f}x")
            section.lines.append(line)
    growth(section, clock)
    return section


def growth(section: Section, clock: Callable[[], float]) -> None:
    """How the time of a product grows with the examples and with the weights."""
    model = network()
    sizes = (500, 1000, 2000)
    took = [best_of(product(model, n), repeats=3, clock=clock) for n in sizes]
    for at in (1, 2):
        what = f"a product: {sizes[at]:,} images against {sizes[at - 1]:,}"
        section.times(what, took[at], took[at - 1], most=None)
    widths = (200, 400, 800)
    nets = [network("mlp", hidden=(width, width)) for width in widths]
    counts = [sum(each.numel() for each in net.parameters()) for net in nets]
    took = [best_of(product(net, IMAGES), repeats=3, clock=clock) for net in nets]
    for at in (1, 2):
        times = counts[at] / counts[at - 1]
        what = (
            f"a product: MLP with {counts[at]:,} weights against {counts[at - 1]:,}, {times:.2f}x"
        )
        section.times(what, took[at], took[at - 1], most=None)


def memory(side: str, matrix: Matrix, batch: int) -> float:
    """Megabytes that one eigenvalue takes."""
    model = network()
    if side == "curvlinops":
        return extra_memory(lambda: rival(model, matrix, batch))
    options = {"keep": 0} if side == "fresh_graphs" else {}
    return extra_memory(lambda: ours(model, matrix, **options))


if __name__ == "__main__":
    print(memory(sys.argv[1], sys.argv[2], int(sys.argv[3])))

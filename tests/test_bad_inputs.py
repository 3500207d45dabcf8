"""Bad inputs: the error or warning, and words of its message.

A message is one line that says what is wrong, where, and what to do. Numbers are those of the
list of bad inputs of the project.
"""

import re
import warnings
import zipfile
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from calibrant import Predictions, calibrators, metrics

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

LABELS = [0, 1, 1]
PROBS = np.array([[0.7, 0.3], [0.4, 0.6], [0.1, 0.9]])
LOGITS = np.log(PROBS)
NAN, INF = np.nan, np.inf
SPARSE = torch.tensor(LABELS).to_sparse()


@dataclass(frozen=True)
class Case:
    """A call, which gets a folder, and its message; ` ... ` stands for any words in between."""

    number: int
    call: object
    message: str
    kind: type[BaseException]


value_error = partial(Case, kind=ValueError)
type_error = partial(Case, kind=TypeError)
warning = partial(Case, kind=UserWarning)


def calling(function, *args, **options):
    return lambda _: function(*args, **options)


def logits(values=LOGITS, labels=LABELS, **options):
    return calling(Predictions, values, labels, **options)


def probs(values=PROBS, labels=LABELS, **options):
    return calling(Predictions.from_probs, values, labels, **options)


def binary(scores, labels, kind):
    return calling(Predictions.from_binary, scores, labels, kind=kind)


def sums(confidence=(0.5, 0.6, 1.0), correct=(0, 1, 1), **options):
    return calling(metrics.BinSums.of_confidence, confidence, correct, **options)


def ece_with(**options):
    return calling(metrics.calibration_error, many(), **options)


def with_value(array, value, row=1, column=0):
    changed = np.array(array, dtype=np.float64)
    changed[row, column] = value
    return changed


def many(n=60, k=3):
    generator = np.random.default_rng(0)
    return Predictions(generator.normal(size=(n, k)), generator.integers(0, k, n))


def absent():
    """Examples of classes 0 and 1 of three."""
    data = many()
    return Predictions(data.logits + 2 * torch.eye(3)[data.labels % 2], data.labels % 2)


def of_two_orders():
    return [Predictions(LOGITS, LABELS, class_names=names) for names in ("ab", "ba")]


ALIKE = Predictions(np.zeros((20, 3)), [0, 1] * 10)
ARRAYS = [
    value_error(
        1, probs(with_value(PROBS, NAN)), "probs contains 1 NaN ... row 1, class 0 ... fix or drop"
    ),
    value_error(1, logits(with_value(LOGITS, NAN)), "logits contains 1 NaN ... row 1, class 0"),
    value_error(1, sums([0.5, NAN, 1.0]), "confidence must be finite, got nan at row 1"),
    value_error(
        2,
        calling(metrics.BinSums.on_grid, [0.5, INF], [0, 1]),
        "confidence must be finite, got inf at row 1",
    ),
    value_error(2, probs(with_value(PROBS, INF)), "probs contains 1 inf ... row 1, class 0"),
    value_error(2, logits(with_value(LOGITS, INF)), "logits contains 1 inf ... row 1, class 0"),
    value_error(2, logits([[0.0, 1.0], [-INF, -INF]], [0, 1]), "row 1 is -inf for every class"),
    value_error(
        3,
        probs(with_value(PROBS, -0.02)),
        "probs outside [0, 1]: min -0.02 (row 1, class 0) ... Predictions(logits, labels)",
    ),
    value_error(3, probs(with_value(PROBS, 1.1)), "probs outside [0, 1]: max 1.1 (row 1, class 0)"),
    value_error(
        3, sums(torch.tensor([0.5, 1.0, 1.5])), "confidence must lie in [0, 1], got 1.5 at row 2"
    ),
    value_error(3, sums(correct=[0, -1, 1]), "correct must lie in [0, 1], got -1 at row 1"),
    value_error(
        4,
        probs(with_value(PROBS, 0.27)),
        "1 of 3 rows ... do not sum to 1 within 0.001 (row 1: 0.87) ... normalize=True",
    ),
    value_error(
        4, probs([[0.0, 0.0], [1.0, 1.0]], [0, 1], normalize=True), "1 of 2 rows ... row 0: 0"
    ),
    value_error(
        5,
        probs([[3.1, -1.0], [0.2, 4.0]], [0, 1]),
        "probs outside [0, 1] ... if these are logits use Predictions(logits, labels)",
    ),
    value_error(6, probs(LOGITS), "look like log-probabilities ... Predictions(log_probs, labels)"),
    value_error(7, logits(np.zeros((0, 3)), []), "need at least 1 example ... (0, 3)"),
    value_error(7, binary([], [], "probs"), "need at least 1 example ... scores of shape (0,)"),
    value_error(7, binary([], [], "logits"), "need at least 1 example ... scores of shape (0,)"),
    value_error(7, lambda _: metrics.BinSums.zero().ece, "no examples were added yet"),
    value_error(7, lambda _: metrics.BinSums.grid_zero().equal_mass(5).mce, "no examples were add"),
    *(
        warning(8, calling(metric, many(10)), "10 examples in 15 bins ... use bins<=3 or more exam")
        for metric in (metrics.ece, metrics.debiased_ece, metrics.debiased_rmsce)
    ),
    value_error(9, logits(np.zeros((9, 2)), np.zeros(8)), "logits has 9 rows, labels 8"),
    value_error(
        9,
        calling(many().take, np.ones(59, dtype=bool)),
        "mask has 59 booleans, there are 60 examples",
    ),
    *(
        Case(9, calling(many().take, [0, at]), f"position {at} is out of range", IndexError)
        for at in (60, -61)
    ),
    value_error(
        9,
        sums(correct=[0, 1], weights=[1, 1, 1]),
        "lengths differ: confidence 3, correct 2, weights 3",
    ),
    type_error(10, calling(many().take, [0.5]), "index must be integers or booleans"),
    value_error(10, logits(labels=[0, 1, 0.5]), "labels must be integers, got 0.5 at row 2"),
    value_error(10, logits(labels=[0, 1, NAN]), "labels must be integers, got nan at row 2"),
    value_error(
        12,
        logits(np.zeros((10, 10)), np.arange(1, 11)),
        "label 10 at row 9 ... 10 classes (0..9) ... 1-based",
    ),
    value_error(13, logits(labels=[0, -1, 1]), "label -1 at row 1 ... ignore_index=-1"),
    value_error(
        13,
        binary(PROBS[:, 1], [1, 2, 2], "probs"),
        "labels are 1 and 2, scores are those of one class; pass positive=... to name it",
    ),
    value_error(
        14,
        logits(labels=np.eye(2)[LABELS]),
        "labels have shape (3, 2) ... labels.argmax(1) ... soft labels",
    ),
    type_error(15, logits(labels=["cat", "dog", "dog"]), "labels are strings ... class_names"),
    value_error(
        15,
        logits(labels=["cat", "cow", "dog"], class_names=["cat", "dog"]),
        "'cow' is not in class_names",
    ),
    value_error(15, logits(class_names=["cat"]), "class_names must be 2 different names"),
    value_error(
        15,
        calling(Predictions.concat, of_two_orders()),
        "parts differ in class_names: ['a', 'b'] and ['b', 'a']",
    ),
    value_error(16, probs(PROBS[:, 1:]), "shape (3, 1) ... from_binary ... (n, 2)"),
    value_error(
        16, binary(PROBS[:, 1], LABELS, "scores"), "kind must be 'probs' or 'logits', got 'scores'"
    ),
    value_error(
        17,
        binary(np.full(7, 0.5), np.arange(7), "probs"),
        "1-D scores mean two classes, labels have 7",
    ),
    value_error(
        18,
        logits(np.zeros((10, 1000)), np.zeros(1000)),
        "logits has 10 rows, labels 1000 ... transposed?",
    ),
    value_error(
        19,
        logits(np.zeros((2, 3, 4)), np.zeros((2, 4))),
        "must be (n, k), got (2, 3, 4) ... from_dense",
    ),
    value_error(
        19,
        calling(Predictions.from_dense, torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 5).int()),
        "dense labels must be (2, 4, 4) ... got (2, 4, 5)",
    ),
    type_error(
        20,
        logits(np.array([[1, None]], dtype=object), [0]),
        "logits: dtype object is not supported",
    ),
    type_error(20, logits(np.array([[1j, 0]]), [0]), "dtype complex128 is not supported"),
    type_error(20, logits(np.array([["1", "0"]]), [0]), "logits: dtype <U1 is not supported"),
    *(
        type_error(20, call, f"{name} is a masked array: fill or drop the masked rows first")
        for name, call in {
            "logits": logits(np.ma.masked_less(LOGITS, -2)),
            "labels": logits(labels=np.ma.masked_equal(LABELS, 0)),
            "groups": logits(groups=np.ma.masked_equal(LABELS, 0)),
            "confidence": sums(np.ma.masked_equal([0.5, 0.6, 1.0], 0.5)),
        }.items()
    ),
    type_error(
        20,
        logits(torch.eye(2).to_sparse(), [0, 1]),
        "logits is a sparse tensor: pass logits.to_dense()",
    ),
    type_error(20, logits(groups=SPARSE), "groups is a sparse tensor: pass groups.to_dense()"),
    type_error(
        20,
        logits(groups=["a", None, "b"]),
        "groups must be all numbers or all strings, got NoneType, str",
    ),
    value_error(
        22,
        logits(torch.zeros(1, 2, device="meta"), torch.zeros(1)),
        "one device ... logits on meta, labels on cpu",
    ),
    value_error(24, logits(weights=[1, -1, 1]), "negative, got -1 at row 1"),
    value_error(24, logits(weights=[0, 0, 0]), "weights are all zero"),
    value_error(24, logits(weights=[1, NAN, 1]), "finite, got nan at row 1"),
    value_error(24, logits(weights=[1, 1]), "weights must be (3,), got (2,)"),
    *(
        value_error(
            24,
            make(weights=[size] * 3),
            "weights must sum to a number from 1e-10 to 1e+15, got ... rescale them",
        )
        for size in (1e308, 1e200, 2.0**62, 1e-12, 5e-324)
        for make in (logits, sums)
    ),
    value_error(24, sums(weights=[1, 1, -1]), "weights must not be negative, got -1 at row 2"),
    value_error(24, sums(weights=[1, INF, 1]), "weights must be finite, got inf at row 1"),
    *(
        value_error(25, ece_with(bins=bad), "bins must be an int >= 1")
        for bad in (0, -3, 1.5, True)
    ),
    value_error(26, ece_with(bins=[0, 0.6, 0.5, 1]), "must increase, got 0.6 then 0.5"),
    value_error(26, ece_with(bins=[0.1, 1]), "must cover [0, 1], got 0.1 to 1"),
    value_error(27, ece_with(norm=0.5), "['l1', 'l2', 'max'] ... 0.5"),
    value_error(27, ece_with(norm="l3"), "['l1', 'l2', 'max'] ... 'l3'"),
    warning(
        28,
        calling(metrics.classwise_ece, ALIKE),
        "class 2: no example ... excluded from the mean (2 of 3 classes used)",
    ),
    warning(29, calling(metrics.adaptive_ece, ALIKE), "15 equal-mass bins requested, 1 distinct"),
    *(
        value_error(50, call, f"{name}: rows differ in length")
        for name, call in {
            "logits": logits([[1.0, 2.0], [1.0]], [0, 1]),
            "labels": logits(labels=[[0], [1, 1], 0]),
            "groups": logits(groups=[[0], [1, 1], 0]),
        }.items()
    ),
]


def saved(**arrays):
    def load(folder):
        np.savez(folder / "preds.npz", **arrays)
        return Predictions.load(folder / "preds.npz")

    return load


def table(**columns):
    def load(folder):
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table(columns), folder / "preds.parquet")
        return Predictions.load(folder / "preds.parquet")

    return load


def cut(name, keep):
    def load(folder):
        path = folder / name
        Predictions(LOGITS, LABELS).save(path)
        path.write_bytes(path.read_bytes()[:keep])
        return Predictions.load(path)

    return load


def bomb(folder):
    path = folder / "preds.npz"
    zeros = np.zeros((5_000_000, 2))
    np.savez_compressed(path, logits=zeros, labels=zeros[:, 0])
    return Predictions.load(path)


def flipped(folder):
    path = folder / "preds.parquet"
    many(500).save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    return Predictions.load(path)


def lying_header(folder):
    path = folder / "preds.npz"
    np.savez(path, logits=LOGITS, labels=np.array(LABELS))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["logits.npy"] = members["logits.npy"].replace(b"(3, 2)", b"(9, 9)")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return Predictions.load(path)


def parts_that_differ(folder):
    many(20, 3).save(folder / "part-0.parquet")
    many(20, 4).save(folder / "part-1.parquet")
    return Predictions.load(f"{folder}/part-*.parquet")


columns = partial(table, logits_0=[1.0, 2, 3], logits_1=[0.0, 1, 5], labels=LABELS)
NAMES = "name the arrays to read (logits=, probs=, labels=, or confidence=, correct=)"
NEAR = {"weight": "weights", "Weights": "weights", "wdights": "weights"}
NEAR |= {"group": "groups", "gRoups": "groups", "logitr_2": "logits"}
FILES = [
    value_error(
        42,
        saved(logits=LOGITS, labels=LABELS, ids=LABELS),
        "preds.npz has unknown arrays ['ids']; known are ... ignore=",
    ),
    type_error(
        42,
        saved(logits=np.array([True, False, True]), labels=LABELS),
        "preds.npz: scores: dtype bool is not supported",
    ),
    *(
        value_error(
            42,
            columns(**{name: LABELS}),
            f"preds.parquet has a column {name!r}: rename it if it means {near!r} ... ignore=",
        )
        for name, near in NEAR.items()
    ),
    warning(42, columns(ids=LABELS), "preds.parquet: unknown columns are not read: ['ids']"),
    value_error(
        42,
        saved(scores=LOGITS, y=LABELS),
        f"preds.npz has ['scores', 'y']; need 'labels' and one of 'logits' or 'probs' ... {NAMES}",
    ),
    value_error(
        42,
        saved(logits=LOGITS, probs=PROBS, labels=LABELS),
        f"preds.npz has both 'logits' and 'probs'; {NAMES}",
    ),
    value_error(
        43,
        saved(logits=np.array([[1, None]], dtype=object), labels=[0]),
        "preds.npz ... object arrays are refused",
    ),
    value_error(44, bomb, "preds.npz ... declares ... > x100 ... max_expansion"),
    value_error(44, lying_header, "preds.npz ... logits ... declares"),
    value_error(
        45,
        cut("preds.parquet", 200),
        "not a valid parquet file ... preds.parquet ... last 4 bytes are not PAR1",
    ),
    value_error(45, cut("preds.npz", 100), "preds.npz is not a valid npz file"),
    value_error(45, cut("preds.safetensors", 60), "preds.safetensors"),
    *(
        value_error(45, cut(f"preds.{suffix}", 0), f"preds.{suffix}")
        for suffix in ("npz", "parquet", "safetensors", "csv")
    ),
    value_error(46, flipped, "preds.parquet ... checksum ... damaged"),
    value_error(47, parts_that_differ, "part-1.parquet ... logits"),
    value_error(
        48,
        table(logits_0=[1.0, None], logits_1=[0.0, 1.0], labels=[0, 1]),
        "preds.parquet ... logits_0 ... 1 null",
    ),
    value_error(
        49,
        saved(probs=np.array([97, 55], dtype=np.int8), labels=np.array([1, 0])),
        "preds.npz ... look like percent ... divide by 100",
    ),
    value_error(
        50,
        table(logits=[[1.0, 2.0], [1.0, 2.0, 3.0]], labels=[0, 1]),
        "preds.parquet ... row 0 has 2, row 1 has 3",
    ),
    Case(
        51,
        lambda folder: Predictions.load(f"{folder}/none-*.parquet"),
        "no files match",
        FileNotFoundError,
    ),
]

Temperature = calibrators.TemperatureScaling
CALIBRATORS = [
    type_error(31, lambda _: Temperature(classes=2), "TemperatureScaling ... temperature"),
    value_error(
        32,
        calling(calibrators.select, Predictions(LOGITS, [1, 1, 1])),
        "cannot fit: labels hold a single class, 1",
    ),
    warning(33, calling(Temperature.fit, absent()), "1 of 3 classes never occur: 2"),
    value_error(
        33,
        calling(calibrators.VectorScaling.fit, absent()),
        "1 of 3 classes never occur: 2 ... structured_vector",
    ),
    value_error(
        34,
        calling(Temperature(classes=10, temperature=2.0), torch.zeros(1, 100)),
        "fitted on 10 classes, got 100",
    ),
    warning(
        35,
        calling(Temperature.fit, Predictions([[4.0, 0], [0, 4.0]], [0, 1])),
        "T hit the lower bound 0.05 ... separable",
    ),
    warning(
        36,
        calling(Temperature.fit, Predictions([[4.0, 0], [0, 4.0]], [1, 0])),
        "T hit the upper bound ... do not predict the labels",
    ),
    warning(38, calling(calibrators.IsotonicRegression.fit, many()), "50"),
    value_error(
        39,
        calling(calibrators.MatrixScaling.fit, many(60, 10)),
        "at least 110 examples, got 60 ... structured_matrix is regularised",
    ),
    warning(
        40,
        calling(
            Temperature.fit,
            Predictions.from_probs([[1.0, 0.0], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1]),
        ),
        "1 of 6 probabilities are exactly 0 ... 0.25, less than all others",
    ),
]

CATALOGUE = ARRAYS + CALIBRATORS + FILES


@pytest.mark.parametrize("case", CATALOGUE, ids=lambda case: f"{case.number}-{case.message}")
def test_the_message_says_what_is_wrong(case, tmp_path):
    expects = pytest.warns if issubclass(case.kind, Warning) else pytest.raises
    with expects(case.kind) as caught:
        case.call(tmp_path)
    message = str(caught[0].message if issubclass(case.kind, Warning) else caught.value)
    assert re.search(".*".join(map(re.escape, case.message.split(" ... "))), message)
    assert "\n" not in message.strip()


def test_every_number_of_the_list_has_a_case():
    # 11, 21, 23 and 30 are accepted, not refused: the tests below.
    # 37, a search cut short: tests/calibrators/test_temperature.py. 41, the same examples for
    # fitting and measuring, is refused by a command: tests/cli/test_cli_apply.py.
    listed = {*range(1, 52)} - {11, 21, 23, 30, 37, 41}
    assert {case.number for case in CATALOGUE} == listed


def test_11_integral_floats_are_accepted_as_labels():
    assert Predictions(LOGITS, [0.0, 1.0, 1.0]).labels.dtype == torch.int64


def test_21_half_precision_is_accepted_with_a_wider_sum():
    probs = torch.tensor([[0.3333, 0.3333, 0.3333]] * 4).half()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Predictions.from_probs(probs, [0, 1, 2, 0])) == 4


def test_23_gradients_are_dropped():
    logits = torch.zeros(20, 2, requires_grad=True)
    assert not Predictions(logits, [0] * 20).confidence.requires_grad


def test_30_confidence_on_an_edge_follows_the_rule():
    p = Predictions.from_binary([1.0, 0.6, 0.8], [1, 1, 1], kind="probs")
    assert metrics.BinSums.of(p, 5).count.tolist() == [0, 0, 1, 1, 1]


def test_labels_beyond_64_bits_are_named():
    labels = np.array([2**63, 0], dtype=np.uint64)
    with pytest.raises(ValueError, match="labels: 9223372036854775808 is too large"):
        Predictions(np.eye(2), labels)

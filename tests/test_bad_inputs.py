"""Bad inputs: the error or warning, and words of its message.

A message is one line that says what is wrong, where, and what to do. Numbers are those of the
list of bad inputs of the project.
"""

import warnings
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from calibrant import Predictions, calibrators, metrics

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")

LABELS = [0, 1, 1]
PROBS = np.array([[0.7, 0.3], [0.4, 0.6], [0.1, 0.9]])
LOGITS = np.log(PROBS)


@dataclass(frozen=True)
class Case:
    number: int
    what: str
    call: object
    kind: type[BaseException]
    words: tuple[str, ...]


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


def weighted(weights):
    return lambda _: Predictions(LOGITS, LABELS, weights=weights)


def sums(confidence=(0.5, 0.6, 1.0), correct=(0, 1, 1), **options):
    return lambda _: metrics.BinSums.of_confidence(confidence, correct, **options)


def ece_with(**options):
    return lambda _: metrics.calibration_error(many(), **options)


ARRAYS = [
    Case(
        1,
        "probs with NaN",
        lambda _: Predictions.from_probs(with_value(PROBS, np.nan), LABELS),
        ValueError,
        ("probs contains 1 NaN", "row 1, class 0", "fix or drop"),
    ),
    Case(
        1,
        "logits with NaN",
        lambda _: Predictions(with_value(LOGITS, np.nan), LABELS),
        ValueError,
        ("logits contains 1 NaN", "row 1, class 0"),
    ),
    Case(
        1,
        "a confidence that is NaN",
        sums([0.5, np.nan, 1.0]),
        ValueError,
        ("confidence must be finite, got nan at row 1",),
    ),
    Case(
        2,
        "a confidence on the grid that is inf",
        lambda _: metrics.BinSums.on_grid([0.5, np.inf], [0, 1]),
        ValueError,
        ("confidence must be finite, got inf at row 1",),
    ),
    Case(
        2,
        "probs with inf",
        lambda _: Predictions.from_probs(with_value(PROBS, np.inf), LABELS),
        ValueError,
        ("probs contains 1 inf", "row 1, class 0"),
    ),
    Case(
        2,
        "logits with +inf",
        lambda _: Predictions(with_value(LOGITS, np.inf), LABELS),
        ValueError,
        ("logits contains 1 inf", "row 1, class 0"),
    ),
    Case(
        2,
        "a row of -inf",
        lambda _: Predictions([[0.0, 1.0], [-np.inf, -np.inf]], [0, 1]),
        ValueError,
        ("row 1 is -inf for every class",),
    ),
    Case(
        3,
        "a probability below zero",
        lambda _: Predictions.from_probs(with_value(PROBS, -0.02), LABELS),
        ValueError,
        ("probs outside [0, 1]: min -0.02 (row 1, class 0)", "Predictions(logits, labels)"),
    ),
    Case(
        3,
        "a probability above one",
        lambda _: Predictions.from_probs(with_value(PROBS, 1.1), LABELS),
        ValueError,
        ("probs outside [0, 1]: max 1.1 (row 1, class 0)",),
    ),
    Case(
        3,
        "a confidence above one",
        sums(torch.tensor([0.5, 1.0, 1.5])),
        ValueError,
        ("confidence must lie in [0, 1], got 1.5 at row 2",),
    ),
    Case(
        3,
        "correctness below zero",
        sums(correct=[0, -1, 1]),
        ValueError,
        ("correct must lie in [0, 1], got -1.0 at row 1",),
    ),
    Case(
        4,
        "rows that do not sum to one",
        lambda _: Predictions.from_probs(with_value(PROBS, 0.27), LABELS),
        ValueError,
        ("1 of 3 rows", "do not sum to 1 within 0.001 (row 1: 0.87)", "normalize=True"),
    ),
    Case(
        4,
        "a row of zeros to normalise",
        lambda _: Predictions.from_probs([[0.0, 0.0], [1.0, 1.0]], [0, 1], normalize=True),
        ValueError,
        ("1 of 2 rows", "row 0: 0"),
    ),
    Case(
        5,
        "logits passed as probs",
        lambda _: Predictions.from_probs([[3.1, -1.0], [0.2, 4.0]], [0, 1]),
        ValueError,
        ("probs outside [0, 1]", "if these are logits use Predictions(logits, labels)"),
    ),
    Case(
        6,
        "log-probabilities passed as probs",
        lambda _: Predictions.from_probs(LOGITS, LABELS),
        ValueError,
        ("look like log-probabilities", "Predictions(log_probs, labels)"),
    ),
    Case(
        7,
        "no examples",
        lambda _: Predictions(np.zeros((0, 3)), []),
        ValueError,
        ("need at least 1 example", "(0, 3)"),
    ),
    *(
        Case(
            7,
            f"no binary examples, {kind}",
            lambda _, kind=kind: Predictions.from_binary([], [], kind=kind),
            ValueError,
            ("need at least 1 example", "scores of shape (0,)"),
        )
        for kind in ("probs", "logits")
    ),
    Case(
        7,
        "sums of no examples",
        lambda _: metrics.BinSums.zero().ece,
        ValueError,
        ("no examples were added yet",),
    ),
    *(
        Case(
            8,
            f"fewer examples than bins, {metric.__name__}",
            lambda _, metric=metric: metric(many(10)),
            UserWarning,
            ("10 examples in 15 bins", "use bins<=3 or more examples"),
        )
        for metric in (metrics.ece, metrics.debiased_ece, metrics.debiased_rmsce)
    ),
    Case(
        9,
        "lengths that differ",
        lambda _: Predictions(np.zeros((1000, 2)), np.zeros(999)),
        ValueError,
        ("logits has 1000 rows, labels 999",),
    ),
    Case(
        9,
        "a mask of another length",
        lambda _: many(60).take(np.ones(59, dtype=bool)),
        ValueError,
        ("mask has 59 booleans, there are 60 examples",),
    ),
    *(
        Case(
            9,
            f"position {position}",
            lambda _, position=position: many(60).take([0, position]),
            IndexError,
            (f"position {position} is out of range for 60 examples",),
        )
        for position in (60, -61)
    ),
    Case(
        9,
        "sums of lengths that differ",
        sums(correct=[0, 1], weights=[1, 1, 1]),
        ValueError,
        ("lengths differ: confidence 3, correct 2, weights 3",),
    ),
    Case(
        10,
        "positions that are not whole",
        lambda _: many(60).take([0.5]),
        TypeError,
        ("index must be integers or booleans",),
    ),
    Case(
        10,
        "labels that are not whole",
        lambda _: Predictions(LOGITS, [0, 1, 0.5]),
        ValueError,
        ("labels must be integers, got 0.5 at row 2",),
    ),
    Case(
        10,
        "labels that are NaN",
        lambda _: Predictions(LOGITS, [0, 1, np.nan]),
        ValueError,
        ("labels must be integers, got nan at row 2",),
    ),
    Case(
        12,
        "labels counted from one",
        lambda _: Predictions(np.zeros((10, 10)), np.arange(1, 11)),
        ValueError,
        ("label 10 at row 9", "10 classes (0..9)", "1-based"),
    ),
    Case(
        13,
        "a negative label",
        lambda _: Predictions(LOGITS, [0, -1, 1]),
        ValueError,
        ("label -1 at row 1", "ignore_index=-1"),
    ),
    Case(
        13,
        "labels -1 and 1",
        lambda _: Predictions.from_binary(PROBS[:, 1], [-1, 1, 1], kind="probs"),
        ValueError,
        ("label -1 at row 0", "labels look like -1/1: use 0 and 1"),
    ),
    Case(
        14,
        "one-hot labels",
        lambda _: Predictions(LOGITS, np.eye(2)[LABELS]),
        ValueError,
        ("labels have shape (3, 2)", "labels.argmax(1)", "soft labels"),
    ),
    Case(
        15,
        "labels that are words",
        lambda _: Predictions(LOGITS, ["cat", "dog", "dog"]),
        TypeError,
        ("labels are strings", "class_names"),
    ),
    Case(
        15,
        "a word that is no class",
        lambda _: Predictions(LOGITS, ["cat", "cow", "dog"], class_names=["cat", "dog"]),
        ValueError,
        ("'cow' is not in class_names",),
    ),
    Case(
        15,
        "too few class names",
        lambda _: Predictions(LOGITS, LABELS, class_names=["cat"]),
        ValueError,
        ("class_names must be 2 different names",),
    ),
    Case(
        15,
        "parts whose class names differ",
        lambda _: Predictions.concat(
            [Predictions(LOGITS, LABELS, class_names=names) for names in ("ab", "ba")]
        ),
        ValueError,
        ("parts differ in class_names: ['a', 'b'] and ['b', 'a']",),
    ),
    Case(
        16,
        "one column",
        lambda _: Predictions.from_probs(PROBS[:, 1:], LABELS),
        ValueError,
        ("shape (3, 1)", "from_binary", "(n, 2)"),
    ),
    Case(
        16,
        "scores without their kind",
        lambda _: Predictions.from_binary(PROBS[:, 1], LABELS, kind="scores"),
        ValueError,
        ("kind must be 'probs' or 'logits', got 'scores'",),
    ),
    Case(
        17,
        "one score and many classes",
        lambda _: Predictions.from_binary(np.full(7, 0.5), np.arange(7), kind="probs"),
        ValueError,
        ("1-D scores mean two classes, labels have 7",),
    ),
    Case(
        18,
        "transposed",
        lambda _: Predictions(np.zeros((10, 1000)), np.zeros(1000)),
        ValueError,
        ("logits has 10 rows, labels 1000", "transposed?"),
    ),
    Case(
        19,
        "three axes",
        lambda _: Predictions(np.zeros((2, 3, 4)), np.zeros((2, 4))),
        ValueError,
        ("must be (n, k), got (2, 3, 4)", "from_dense"),
    ),
    Case(
        19,
        "dense labels of another shape",
        lambda _: Predictions.from_dense(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 5).int()),
        ValueError,
        ("dense labels must be (2, 4, 4)", "got (2, 4, 5)"),
    ),
    Case(
        20,
        "objects",
        lambda _: Predictions(np.array([[1, None]], dtype=object), [0]),
        TypeError,
        ("logits: dtype object is not supported",),
    ),
    Case(
        20,
        "complex numbers",
        lambda _: Predictions(np.array([[1j, 0]]), [0]),
        TypeError,
        ("dtype complex128 is not supported",),
    ),
    Case(
        20,
        "text",
        lambda _: Predictions(np.array([["1", "0"]]), [0]),
        TypeError,
        ("logits: dtype <U1 is not supported",),
    ),
    *(
        Case(
            20,
            f"masked {name}",
            call,
            TypeError,
            (f"{name} is a masked array: fill or drop the masked rows first",),
        )
        for name, call in {
            "logits": lambda _: Predictions(np.ma.masked_less(LOGITS, -2), LABELS),
            "labels": lambda _: Predictions(LOGITS, np.ma.masked_equal(LABELS, 0)),
            "groups": lambda _: Predictions(LOGITS, LABELS, groups=np.ma.masked_equal(LABELS, 0)),
            "confidence": sums(np.ma.masked_equal([0.5, 0.6, 1.0], 0.5)),
        }.items()
    ),
    Case(
        20,
        "a sparse tensor",
        lambda _: Predictions(torch.eye(2).to_sparse(), [0, 1]),
        TypeError,
        ("logits is a sparse tensor: pass logits.to_dense()",),
    ),
    Case(
        20,
        "sparse groups",
        lambda _: Predictions(LOGITS, LABELS, groups=torch.tensor(LABELS).to_sparse()),
        TypeError,
        ("groups is a sparse tensor: pass groups.to_dense()",),
    ),
    Case(
        20,
        "groups of several types",
        lambda _: Predictions(LOGITS, LABELS, groups=["a", None, "b"]),
        TypeError,
        ("groups must be all numbers or all strings, got NoneType, str",),
    ),
    Case(
        22,
        "two devices",
        lambda _: Predictions(torch.zeros(1, 2, device="meta"), torch.zeros(1)),
        ValueError,
        ("one device", "logits on meta, labels on cpu"),
    ),
    Case(24, "negative weight", weighted([1, -1, 1]), ValueError, ("negative, got -1 at row 1",)),
    Case(24, "no weight at all", weighted([0, 0, 0]), ValueError, ("weights are all zero",)),
    Case(24, "weight NaN", weighted([1, np.nan, 1]), ValueError, ("finite, got nan at row 1",)),
    Case(24, "too few weights", weighted([1, 1]), ValueError, ("weights must be (3,), got (2,)",)),
    *(
        Case(24, f"{what} of weights {size:g}", make([size] * 3), ValueError, words)
        for size in (1e308, 1e200, 2.0**62, 1e-12, 5e-324)
        for words in [("weights must sum to a number from 1e-10 to 1e+15, got ", "rescale them")]
        for what, make in (("sum", weighted), ("bins", lambda w: sums(weights=w)))
    ),
    Case(
        24,
        "negative weight of a sum",
        sums(weights=[1, 1, -1]),
        ValueError,
        ("weights must lie in [0, inf], got -1.0 at row 2",),
    ),
    Case(
        24,
        "infinite weight of a sum",
        sums(weights=[1, np.inf, 1]),
        ValueError,
        ("weights must be finite, got inf at row 1",),
    ),
    *(
        Case(25, f"bins={bins!r}", ece_with(bins=bins), ValueError, ("bins must be an int >= 1",))
        for bins in (0, -3, 1.5, True)
    ),
    Case(
        26,
        "edges that fall",
        ece_with(bins=[0, 0.6, 0.5, 1]),
        ValueError,
        ("must increase, got 0.6 then 0.5",),
    ),
    Case(
        26,
        "edges that do not cover",
        ece_with(bins=[0.1, 1]),
        ValueError,
        ("must cover [0, 1], got 0.1 to 1",),
    ),
    Case(27, "norm below one", ece_with(norm=0.5), ValueError, ("['l1', 'l2', 'max']", "0.5")),
    Case(27, "unknown norm", ece_with(norm="l3"), ValueError, ("['l1', 'l2', 'max']", "'l3'")),
    Case(
        28,
        "a class that never occurs",
        lambda _: metrics.classwise_ece(Predictions(np.zeros((20, 3)), [0, 1] * 10)),
        UserWarning,
        ("class 2: no example", "excluded from the mean (2 of 3 classes used)"),
    ),
    Case(
        29,
        "all predictions alike",
        lambda _: metrics.adaptive_ece(Predictions(np.zeros((20, 3)), [0, 1] * 10)),
        UserWarning,
        ("15 equal-mass bins requested, 1 distinct",),
    ),
    *(
        Case(50, f"ragged {name}", call, ValueError, (f"{name}: rows differ in length",))
        for name, call in {
            "logits": lambda _: Predictions([[1.0, 2.0], [1.0]], [0, 1]),
            "labels": lambda _: Predictions(LOGITS, [[0], [1, 1], 0]),
            "groups": lambda _: Predictions(LOGITS, LABELS, groups=[[0], [1, 1], 0]),
        }.items()
    ),
]


def saved(folder, **arrays):
    np.savez(folder / "preds.npz", **arrays)
    return Predictions.load(folder / "preds.npz")


def bomb(folder):
    path = folder / "preds.npz"
    zeros = np.zeros((5_000_000, 2))
    np.savez_compressed(path, logits=zeros, labels=zeros[:, 0])
    return Predictions.load(path)


def cut(folder, name, keep):
    path = folder / name
    Predictions(LOGITS, LABELS).save(path)
    path.write_bytes(path.read_bytes()[:keep])
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


def table(folder, **columns):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), folder / "preds.parquet")
    return Predictions.load(folder / "preds.parquet")


FILES = [
    Case(
        42,
        "an array that nobody would read",
        lambda folder: saved(folder, logits=LOGITS, labels=LABELS, ids=LABELS),
        ValueError,
        ("preds.npz has unknown arrays ['ids']; known are", "ignore="),
    ),
    Case(
        42,
        "scores that are decisions",
        lambda folder: saved(folder, logits=np.array([True, False, True]), labels=LABELS),
        TypeError,
        ("preds.npz: scores: dtype bool is not supported",),
    ),
    *(
        Case(
            42,
            f"a column called {name}",
            lambda folder, name=name: table(
                folder, logits_0=[1.0, 2, 3], logits_1=[0.0, 1, 5], labels=LABELS, **{name: LABELS}
            ),
            ValueError,
            (f"preds.parquet has a column {name!r}: rename it if it means {near!r}", "--ignore"),
        )
        for name, near in (
            ("weight", "weights"),
            ("Weights", "weights"),
            ("wdights", "weights"),
            ("group", "groups"),
            ("gRoups", "groups"),
            ("logitr_2", "logits"),
        )
    ),
    Case(
        42,
        "a column that is not read",
        lambda folder: table(
            folder, logits_0=[1.0, 2, 3], logits_1=[0.0, 1, 5], labels=LABELS, ids=LABELS
        ),
        UserWarning,
        ("preds.parquet: unknown columns are not read: ['ids']",),
    ),
    Case(
        42,
        "npz without the key",
        lambda folder: saved(folder, scores=LOGITS, y=LABELS),
        ValueError,
        (
            "preds.npz has ['scores', 'y']; need 'labels' and one of 'logits' or 'probs'",
            "logits=, probs=, labels= in Python",
            "--logits, --probs, --labels on the command line",
        ),
    ),
    Case(
        42,
        "both logits and probs",
        lambda folder: saved(folder, logits=LOGITS, probs=PROBS, labels=LABELS),
        ValueError,
        (
            "preds.npz has both 'logits' and 'probs'; name the one to read",
            "logits=, probs=, labels= in Python",
            "--logits, --probs, --labels on the command line",
        ),
    ),
    Case(
        43,
        "pickled objects",
        lambda folder: saved(folder, logits=np.array([[1, None]], dtype=object), labels=[0]),
        ValueError,
        ("preds.npz", "object arrays are refused"),
    ),
    Case(44, "npz bomb", bomb, ValueError, ("preds.npz", "declares", "> x100", "max_expansion")),
    Case(44, "lying header", lying_header, ValueError, ("preds.npz", "logits", "declares")),
    Case(
        45,
        "truncated parquet",
        lambda folder: cut(folder, "preds.parquet", 200),
        ValueError,
        ("not a valid parquet file", "preds.parquet", "last 4 bytes are not PAR1"),
    ),
    Case(
        45,
        "truncated npz",
        lambda folder: cut(folder, "preds.npz", 100),
        ValueError,
        ("not a valid npz file", "preds.npz"),
    ),
    Case(
        45,
        "truncated safetensors",
        lambda folder: cut(folder, "preds.safetensors", 60),
        ValueError,
        ("preds.safetensors",),
    ),
    *(
        Case(
            45,
            f"zero-byte {suffix}",
            lambda folder, suffix=suffix: cut(folder, f"preds.{suffix}", 0),
            ValueError,
            (f"preds.{suffix}",),
        )
        for suffix in ("npz", "parquet", "safetensors", "csv")
    ),
    Case(46, "a flipped bit", flipped, ValueError, ("preds.parquet", "checksum", "damaged")),
    Case(
        47,
        "parts that differ",
        parts_that_differ,
        ValueError,
        ("part-1.parquet", "logits"),
    ),
    Case(
        48,
        "nulls",
        lambda folder: table(folder, logits_0=[1.0, None], logits_1=[0.0, 1.0], labels=[0, 1]),
        ValueError,
        ("preds.parquet", "logits_0", "1 null"),
    ),
    Case(
        49,
        "percent",
        lambda folder: saved(
            folder, probs=np.array([97, 55], dtype=np.int8), labels=np.array([1, 0])
        ),
        ValueError,
        ("preds.npz", "look like percent", "divide by 100"),
    ),
    Case(
        50,
        "ragged lists",
        lambda folder: table(folder, logits=[[1.0, 2.0], [1.0, 2.0, 3.0]], labels=[0, 1]),
        ValueError,
        ("preds.parquet", "row 1", "2", "3"),
    ),
    Case(
        51,
        "a pattern that matches nothing",
        lambda folder: Predictions.load(f"{folder}/none-*.parquet"),
        FileNotFoundError,
        ("no files match",),
    ),
]

REPAIRS = [
    Case(
        31,
        "applied before it is fitted",
        lambda _: calibrators.TemperatureScaling(classes=2)(torch.zeros(1, 2)),
        TypeError,
        ("TemperatureScaling", "temperature"),
    ),
    Case(
        32,
        "labels of one class",
        lambda _: calibrators.select(Predictions(LOGITS, [1, 1, 1])),
        ValueError,
        ("cannot fit: labels hold a single class, 1",),
    ),
    Case(
        33,
        "a class that never occurs",
        lambda _: calibrators.TemperatureScaling.fit(absent()),
        UserWarning,
        ("1 of 3 classes never occur: 2",),
    ),
    Case(
        33,
        "a class that never occurs, where each has numbers of its own",
        lambda _: calibrators.VectorScaling.fit(absent()),
        ValueError,
        ("1 of 3 classes never occur: 2", "structured_vector"),
    ),
    Case(
        34,
        "another number of classes",
        lambda _: calibrators.TemperatureScaling(classes=10, temperature=2.0)(torch.zeros(1, 100)),
        ValueError,
        ("fitted on 10 classes, got 100",),
    ),
    Case(
        35,
        "every answer right",
        lambda _: calibrators.TemperatureScaling.fit(Predictions([[4.0, 0], [0, 4.0]], [0, 1])),
        UserWarning,
        ("T hit the lower bound 0.05", "separable"),
    ),
    Case(
        36,
        "labels that have nothing to do with the logits",
        lambda _: calibrators.TemperatureScaling.fit(Predictions([[4.0, 0], [0, 4.0]], [1, 0])),
        UserWarning,
        ("T hit the upper bound", "do not predict the labels"),
    ),
    Case(
        38,
        "few examples of a class for isotonic regression",
        lambda _: calibrators.IsotonicRegression.fit(many()),
        UserWarning,
        ("50",),
    ),
    Case(
        39,
        "more numbers than examples",
        lambda _: calibrators.MatrixScaling.fit(many(60, 10)),
        ValueError,
        ("at least 110 examples, got 60", "structured_matrix is regularised"),
    ),
    Case(
        40,
        "probabilities of exactly zero",
        lambda _: calibrators.TemperatureScaling.fit(
            Predictions.from_probs([[1.0, 0.0], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1])
        ),
        UserWarning,
        ("1 of 6 probabilities are exactly 0", "1e-38"),
    ),
]

CATALOGUE = ARRAYS + REPAIRS + FILES


@pytest.mark.parametrize("case", CATALOGUE, ids=lambda case: f"{case.number}-{case.what}")
def test_the_message_says_what_is_wrong(case, tmp_path):
    expects = pytest.warns if issubclass(case.kind, Warning) else pytest.raises
    with expects(case.kind) as caught:
        case.call(tmp_path)
    message = str(caught[0].message if issubclass(case.kind, Warning) else caught.value)
    for words in case.words:
        assert words in message
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

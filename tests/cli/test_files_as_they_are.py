"""Files of other programs are read, calibrated and compared as they are."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from calibrant import Predictions, files, metrics
from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.storage import save

CLASSES = np.array(["bird", "cat", "dog"])
VALUES = ("--no-intervals", "--no-figure", "--no-page", "--json")


@pytest.fixture
def probs():
    """Probabilities of three classes, far too confident, and their labels."""
    generator = np.random.default_rng(0)
    z = generator.normal(size=(300, 3))
    labels = (z + generator.gumbel(size=z.shape)).argmax(1)
    return torch.softmax(torch.from_numpy(3 * z), 1).numpy(), labels


@pytest.fixture
def table(tmp_path):
    """Write columns to a csv file."""

    def write(name, **columns):
        with open(tmp_path / name, "w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return name

    return write


@pytest.fixture
def ece_of(run):
    """The ECE that an audit prints as JSON, and what it says on stderr."""

    def audit(*args):
        code, out, err = run("audit", *args, *VALUES)
        assert code == 0, err
        return json.loads(out)["metrics"]["ece"]["value"], err

    return audit


def rows(path):
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def test_confidence_and_correctness_are_enough(run, ece_of, table, probs):
    p, labels = probs
    top, right = p.max(1), (p.argmax(1) == labels).astype(int)
    whole = metrics.ece(Predictions.from_probs(p, labels))
    assert (top < 0.5).any()
    table("conf.csv", conf=top, hit=right)
    value, _ = ece_of("conf.csv", "--confidence", "conf", "--correct", "hit")
    assert value == pytest.approx(whole, rel=1e-9)
    table("usual.csv", confidence=top, correct=right)
    assert ece_of("usual.csv")[0] == pytest.approx(whole, rel=1e-9)
    # As scores of class 1 the values below one half are those of class 0: the note says so.
    value, err = ece_of("usual.csv", "--probs", "confidence", "--labels", "correct")
    assert value != pytest.approx(whole, rel=1e-3)
    assert "'confidence' is read as the score of class 1; name it as confidence if" in err
    # A file that lacks the named columns is read by its own.
    named = ("--confidence", "conf", "--correct", "hit")
    code, out, err = run("compare", "conf.csv", "usual.csv", *named, "--resamples", 240, "--json")
    assert json.loads(out)["metrics"]["ece"]["difference"] == pytest.approx(0, abs=1e-12)
    assert "note: usual.csv has no conf: read by the names it has\n" in err
    code, _, err = run("compare", "usual.csv", "usual.csv", "--confidence", "typo")
    assert (code, "usual.csv has no 'typo'" in err) == (2, True)
    code, out, _ = run("compare", "usual.csv", "usual.csv", "--resamples", 240, "--json")
    assert list(json.loads(out)["metrics"]) == [
        "top_label_brier",
        "accuracy",
        "debiased_ece",
        "ece",
    ]


def test_columns_are_named_by_a_list_a_pattern_or_one_by_one(ece_of, table):
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(12), size=200)
    labels = generator.integers(0, 12, 200)
    order = [f"q{i}" for i in (10, 2, 11, 0, 1, 3, 4, 5, 6, 7, 8, 9)]
    table("many.csv", **{name: p[:, int(name[1:])] for name in order}, y=labels)
    expected = pytest.approx(metrics.ece(Predictions.from_probs(p, labels)), rel=1e-9)
    names = [f"q{i}" for i in range(12)]
    assert ece_of("many.csv", "--probs", "q*")[0] == expected
    assert ece_of("many.csv", "--probs", ",".join(names))[0] == expected
    repeated = [each for name in names for each in ("--probs", name)]
    assert ece_of("many.csv", *repeated, "--labels", "y")[0] == expected


STEMS = [(stem, "y") for stem in ("p", "p_", "prob_", "proba_", "probs_", "Prob-")]


@pytest.mark.parametrize(
    ("stem", "label"), STEMS + [("p", name) for name in ("label", "labels", "target", "y_true")]
)
def test_usual_names_need_no_options_and_the_note_says_what_was_read(
    ece_of, table, probs, stem, label
):
    p, labels = probs
    table(
        "t.csv", id=np.arange(300), **{f"{stem}{i}": p[:, i] for i in range(3)}, **{label: labels}
    )
    value, err = ece_of("t.csv")
    assert value == pytest.approx(metrics.ece(Predictions.from_probs(p, labels)), rel=1e-9)
    said = f"read {stem}0 to {stem}2 as probabilities, {label} as labels\n"
    # `probs` is the name that calibrant writes.
    assert (said in err) == (stem != "probs_")


def test_logits_and_one_score_are_told_by_name_and_never_guessed(run, ece_of, table, probs):
    p, labels = probs
    z = np.log(p)
    expected = pytest.approx(metrics.ece(Predictions.from_probs(p, labels)), rel=1e-6)
    for stem in ("logit_", "z"):
        table("z.csv", **{f"{stem}{i}": z[:, i] for i in range(3)}, y=labels)
        value, err = ece_of("z.csv")
        assert value == expected
        assert f"read {stem}0 to {stem}2 as logits, y as labels" in err
    two = labels == 0
    binary = Predictions.from_binary(p[:, 0], two.astype(int), kind="probs")
    table("one.csv", prob=p[:, 0], y=two.astype(int))
    assert ece_of("one.csv")[0] == pytest.approx(metrics.ece(binary), rel=1e-9)
    for name, given in {
        "class.csv": {f"class_{i}": p[:, i] for i in range(3)},
        "score.csv": {"score": p[:, 0]},
        "both.csv": {"p0": p[:, 0], "p1": p[:, 1], "z0": z[:, 0], "z1": z[:, 1]},
        "gap.csv": {"p0": p[:, 0], "p2": p[:, 1]},
    }.items():
        table(name, **given, y=labels)
        code, _, err = run("audit", name)
        assert code == 2
        assert err.endswith(
            "name the arrays to read (--logits, --probs, --labels, or --confidence, --correct)\n"
        )


def test_labels_may_be_names_which_columns_options_or_a_file_give(ece_of, table, probs, tmp_path):
    p, labels = probs
    expected = pytest.approx(metrics.ece(Predictions.from_probs(p, labels)), rel=1e-9)
    columns = {f"p_{name}": p[:, i] for i, name in enumerate(CLASSES)}
    table("t.csv", note=["a, b"] * 300, **columns, label=CLASSES[labels])
    pq.write_table(pa.table({**columns, "label": CLASSES[labels]}), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert ece_of(name, "--probs", "p_*")[0] == expected
    np.savez(tmp_path / "t.npz", probs=p, labels=CLASSES[labels])
    (tmp_path / "names.txt").write_text("bird\ncat\ndog\n")
    for names in ("bird,cat,dog", "names.txt"):
        assert ece_of("t.npz", "--names", names)[0] == expected
    # Columns that are numbered from 1 have labels from 1.
    table("one.csv", p1=p[:, 0], p2=p[:, 1], p3=p[:, 2], y=labels + 1)
    assert ece_of("one.csv", "--probs", "p*")[0] == expected


def test_one_column_scores_the_positive_class(run, table, probs):
    p, labels = probs
    truth = np.where(labels == 0, "spam", "ham")
    table("spam.csv", score=p[:, 0], y=truth)
    code, out, _ = run("audit", "spam.csv", "--probs", "score", "--positive", "spam", *VALUES)
    assert code == 0
    found = json.loads(out)["class_biases"][1]
    assert (found["name"], found["frequency"]) == ("spam", pytest.approx((labels == 0).mean()))
    assert found["mean_probability"] == pytest.approx(p[:, 0].mean())
    code, _, err = run("audit", "spam.csv", "--probs", "score")
    assert code == 2
    assert "give --positive NAME" in err


@pytest.fixture
def halved(tmp_path):
    """A calibrator that divides logits of three classes by 2, in cal.json."""
    found = TemperatureScaling(classes=3, temperature=2.0)
    save(found, tmp_path / "cal.json")
    return found


def test_apply_keeps_all_other_columns_and_the_kind_of_scores(run, table, probs, halved, tmp_path):
    p, labels = probs
    columns = {f"p_{name}": p[:, i] for i, name in enumerate(CLASSES)}
    table("in.csv", id=["007"] * 300, **columns, label=CLASSES[labels], text=['x, "y"'] * 300)
    tail = ("--probs", "p_*")
    assert run("apply", "cal.json", "in.csv", "-o", "out.csv", *tail)[0] == 0
    before, after = rows(tmp_path / "in.csv"), rows(tmp_path / "out.csv")
    assert list(before[0]) == list(after[0])
    for name in ("id", "label", "text"):
        assert [row[name] for row in before] == [row[name] for row in after]
    found = np.array([[float(row[f"p_{name}"]) for name in CLASSES] for row in after])
    np.testing.assert_allclose(found, halved(np.log(p)).exp(), rtol=1e-9)
    # The same options read both; as logits they have other names, and are found by those.
    assert run("compare", "in.csv", "out.csv", *tail, "--resamples", 240)[0] == 0
    assert run("apply", "cal.json", "in.csv", "-o", "z.csv", *tail, "--as", "logits")[0] == 0
    assert list(rows(tmp_path / "z.csv")[0])[-3:] == ["logits_0", "logits_1", "logits_2"]
    more = ("--metric", "nll", "--resamples", 240, "--json")
    code, out, err = run("compare", "out.csv", "z.csv", *tail, *more)
    assert code == 0, err
    assert json.loads(out)["metrics"]["nll"]["difference"] == pytest.approx(0, abs=1e-9)


def test_apply_keeps_the_columns_of_parquet_files(run, probs, halved, tmp_path):
    p, labels = probs
    table = pa.table(
        {
            "note": ["x"] * 299 + [None],
            "probs": pa.FixedSizeListArray.from_arrays(pa.array(p.ravel()), 3),
            "labels": labels,
            "when": pa.array([1] * 300, pa.timestamp("ms")),
            "tags": pa.array([["a"]] * 300),
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    code, _, err = run("apply", "cal.json", "in.parquet", "-o", "out.parquet")
    assert code == 0
    assert "nested columns are not kept: ['tags']" in err
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["note", "probs", "labels", "when"]
    assert found.column("note").equals(table.column("note"))
    assert found.column("when").equals(table.column("when"))
    changed = Predictions.load(tmp_path / "out.parquet", ignore=["note", "when"])
    np.testing.assert_allclose(changed.probs, halved(np.log(p)).exp(), rtol=1e-9)


@pytest.mark.usefixtures("halved")
def test_apply_copies_ignored_arrays_and_says_what_it_cannot_keep(run, table, probs, tmp_path):
    p, labels = probs
    np.savez(tmp_path / "in.npz", probs=p, labels=labels, ids=np.array(["a"] * 300), version=3)
    assert run("apply", "cal.json", "in.npz", "-o", "out.npz")[0] == 2
    tail = ("--ignore", "ids", "--ignore", "vers*")
    assert run("apply", "cal.json", "in.npz", "-o", "out.npz", *tail)[0] == 0
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found) == ["ids", "labels", "probs", "version"]
        assert found["ids"][0] == "a"
    table("in.csv", p0=p[:, 0], p1=p[:, 1], p2=p[:, 2], y=labels, id=labels)
    code, _, err = run("apply", "cal.json", "in.csv", "-o", "cross.npz")
    assert code == 0
    assert "not kept: id; other columns are kept if cross.npz has the format of the input" in err
    assert files.names(tmp_path / "cross.npz") == ["probs", "y"]
    # Scores that stay as they were would contradict the calibrated ones.
    both = {f"{kind}_{i}": p[:, i] for kind in ("logits", "probs") for i in range(3)}
    table("both.csv", **both, labels=labels)
    code, _, err = run("apply", "cal.json", "both.csv", "-o", "z.csv", "--logits", "logits")
    assert "not kept, because not calibrated: probs" in err
    assert list(rows(tmp_path / "z.csv")[0]) == ["logits_0", "logits_1", "logits_2", "labels"]


def test_one_column_in_is_one_column_out(run, table, probs, tmp_path):
    p, labels = probs
    save(TemperatureScaling(classes=2, temperature=2.0), tmp_path / "two.json")
    table("in.csv", score=p[:, 0], y=np.where(labels == 0, "spam", "ham"))
    tail = ("--probs", "score", "--positive", "spam")
    assert run("apply", "two.json", "in.csv", "-o", "out.csv", *tail)[0] == 0
    found = rows(tmp_path / "out.csv")
    assert list(found[0]) == ["score", "y"]
    odds = np.log(p[:, 0] / (1 - p[:, 0])) / 2
    np.testing.assert_allclose([float(row["score"]) for row in found], 1 / (1 + np.exp(-odds)))


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_dense_scores_are_audited_fitted_applied_and_compared(run, tmp_path, suffix):
    generator = np.random.default_rng(0)
    z = generator.normal(size=(8, 3, 5, 6)).astype("f4") * 3
    labels = (z / 3 + generator.gumbel(size=z.shape)).argmax(1).astype("u1")
    labels[generator.random(labels.shape) < 0.1] = 255
    name, tail = f"d{suffix}", ("--ignore-index", 255)
    files.write(tmp_path / name, {"logits": z, "labels": labels})
    whole = Predictions.from_dense(z, labels.astype(int), ignore_index=255)
    code, out, _ = run("audit", name, *VALUES, *tail)
    assert (code, json.loads(out)["examples"]) == (0, len(whole))
    assert json.loads(out)["metrics"]["ece"]["value"] == pytest.approx(metrics.ece(whole))
    assert "add --ignore-index 255" in run("audit", name)[2]
    assert run("fit", name, "--calibrator", "temperature", "-o", "c.json", *tail)[0] == 0
    code, _, err = run("apply", "c.json", name, "-o", f"out{suffix}", "--allow-same", *tail)
    assert code == 0, err
    found = files.read(tmp_path / f"out{suffix}", ["logits", "labels"])
    assert (found["logits"].shape, found["logits"].dtype) == (z.shape, z.dtype)
    np.testing.assert_array_equal(found["labels"], labels)
    assert run("compare", name, f"out{suffix}", "--resamples", 240, *tail)[0] == 0


def test_calibrators_take_dense_logits_and_tokens():
    z = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    calibrator = TemperatureScaling(classes=3, temperature=2.0)
    torch.testing.assert_close(calibrator(z), torch.log_softmax(z / 2, 1))
    torch.testing.assert_close(calibrator(z[..., 0]), torch.log_softmax(z[..., 0] / 2, 1))
    with pytest.raises(ValueError, match=r"fitted on 3 classes, got shape \(4, 5, 6\)"):
        calibrator(z[:, 0])


def test_rows_of_an_ignored_label_are_dropped_and_sums_are_normalised(run, tmp_path):
    p = np.array([[0.4, 0.4], [0.2, 0.6], [0.6, 0.2]])
    np.savez(tmp_path / "a.npz", probs=p, labels=[0, -100, 1])
    assert "add --normalize to divide by the sum" in run("audit", "a.npz")[2]
    assert "add --ignore-index -100" in run("audit", "a.npz", "--normalize")[2]
    code, out, _ = run("audit", "a.npz", "--normalize", "--ignore-index", -100, *VALUES)
    assert (code, json.loads(out)["examples"]) == (0, 2)


def test_many_models_are_compared_with_a_baseline(run, pair, tmp_path):
    _, right = pair
    Predictions(Predictions.load(right).logits * 1.01, Predictions.load(right).labels).save(
        tmp_path / "same.npz"
    )
    tail = ("--metric", "debiased_ece", "--metric", "nll", "--resamples", 240)
    code, out, err = run("compare", "*.npz", "--baseline", "sharp", *tail)
    assert (code, err) == (0, "")
    assert "3 models, 2,000 examples, paired" in out
    assert "p-values are corrected for 4 tests (Holm)" in out
    assert out.splitlines()[-1] == "debiased_ece against sharp.npz: better: right.npz, same.npz"
    code, out, _ = run("compare", "*.npz", *tail, "--json", "--unpaired")
    record = json.loads(out)
    assert (record["baseline"], record["paired"]) == ("right.npz", False)
    found = record["models"]["sharp.npz"]["debiased_ece"]
    assert (found["higher"], found["better"]) == ("sharp.npz", "right.npz")
    one, two = (Predictions.load(path) for path in ("same.npz", right))
    raw = metrics.compare(metrics.nll, one, two, resamples=240, paired=False)
    kept = record["models"]["same.npz"]["nll"]
    assert kept["difference"] == pytest.approx(raw.value, rel=1e-9)
    assert kept["p_value"] >= raw.p_value
    assert "add --unpaired" in run("compare", right, write_other(tmp_path))[2]


def write_other(folder):
    Predictions(np.eye(3)[:2], [0, 1]).save(folder / "other.npz")
    return "other.npz"


def test_true_and_false_as_text_are_one_and_zero(run, ece_of, table, probs):
    p, labels = probs
    right = p.argmax(1) == labels
    whole = metrics.ece(Predictions.from_probs(p, labels))
    table("conf.csv", conf=p.max(1), hit=right)
    value, _ = ece_of("conf.csv", "--confidence", "conf", "--correct", "hit")
    assert value == pytest.approx(whole, rel=1e-9)
    table("conf.csv", confidence=p.max(1), correct=["yes"] * 300)
    assert "correct must be 0 or 1, or all True or False, got 'yes'" in run("audit", "conf.csv")[2]
    binary = metrics.ece(Predictions.from_binary(p[:, 0], labels == 0, kind="probs"))
    table("one.csv", prob=p[:, 0], y=np.char.upper((labels == 0).astype(str)))
    assert ece_of("one.csv")[0] == pytest.approx(binary, rel=1e-9)
    assert ece_of("one.csv", "--positive", "true")[0] == pytest.approx(binary, rel=1e-9)
    table("two.csv", p0=1 - p[:, 0], p1=p[:, 0], y=labels == 0)
    assert ece_of("two.csv")[0] == pytest.approx(binary, rel=1e-9)


@pytest.mark.parametrize("low", [-1, 1, 3])
def test_one_score_takes_labels_of_any_two_integers(run, ece_of, table, probs, low):
    p, labels = probs
    expected = metrics.ece(Predictions.from_binary(p[:, 0], labels == 0, kind="probs"))
    high = 1 if low == -1 else low + 1
    table("two.csv", prob=p[:, 0], y=np.where(labels == 0, high, low))
    value, _ = ece_of("two.csv", "--positive", high)
    assert value == pytest.approx(expected, rel=1e-9)
    code, _, err = run("audit", "two.csv", "--positive", "maybe")
    assert (code, f"'maybe' is not one of {low}, {high}; give" in err) == (2, True)
    code, _, err = run("audit", "two.csv", *VALUES)
    said = "note: labels are -1 and 1: 1 is read as the class of the scores"
    if low > 0:
        said = f"two.csv: labels are {low} and {high}, scores are those of one class; give --posi"
    assert (code, said in err) == (0 if low == -1 else 2, True)


def test_a_positive_class_that_no_label_has_is_refused_with_the_choice(run, table, probs):
    p, labels = probs
    table("named.csv", prob=p[:, 0], y=np.where(labels == 0, "yes", "no"))
    table("all.csv", prob=p[:, 0], y=["yes"] * 300)
    code, _, err = run("audit", "all.csv", "--positive", "yes")
    assert (code, "labels are all yes, the other class has no name; give --na" in err) == (2, True)
    for command in (["audit"], ["fit", "-o", "c.json"]):
        code, _, err = run(*command, "named.csv", "--positive", "maybe")
        assert (code, "named.csv: 'maybe' is not one of no, yes; give one" in err) == (2, True)


def test_columns_that_end_in_the_labels_need_no_options(run, ece_of, table, probs):
    p, labels = probs
    columns = {f"prob_{name}": p[:, i] for i, name in enumerate(CLASSES)}
    table("t.csv", id=labels, **columns, animal=CLASSES[labels])
    value, err = ece_of("t.csv", "--labels", "animal")
    assert value == pytest.approx(metrics.ece(Predictions.from_probs(p, labels)), rel=1e-9)
    said = "t.csv: read ['prob_bird', 'prob_cat', 'prob_dog'] as probabilities, animal as labels\n"
    assert said in err
    table("t.csv", **columns, prob_of_rain=p[:, 0], y=CLASSES[labels])
    code, _, err = run("audit", "t.csv")
    assert (code, "name the arrays to read (--probs 'prob_*', or --confi" in err) == (2, True)


def test_columns_that_end_in_names_of_classes_need_no_labels_to_apply(run, table, probs):
    p, labels = probs
    columns = {f"prob_{name}": p[:, i] for i, name in enumerate(CLASSES)}
    table("val.csv", **columns, label=CLASSES[labels])
    table("new.csv", **columns)
    assert run("fit", "val.csv", "--calibrator", "temperature", "-o", "cal.json")[0] == 0
    code, out, err = run("apply", "cal.json", "new.csv", "-o", "out.csv")
    assert (code, "no labels: metrics not computed" in out) == (0, True)
    assert "new.csv: read ['prob_bird', 'prob_cat', 'prob_dog'] as probabilities\n" in err
    command = ["apply", "cal.json", "val.csv", "-o", "out.csv", "--allow-same"]
    code, out, _ = run(*command, "--estimate-prior", "new.csv")
    assert (code, "priors by em from 300 unlabelled examples" in out) == (0, True)
    table("turned.csv", **dict(reversed(columns.items())))
    code, _, err = run("apply", "cal.json", "turned.csv", "-o", "out.csv")
    assert (code, "those of the fit ['bird', 'cat', 'dog']: give them in" in err) == (2, True)
    code, _, err = run("audit", "new.csv")
    assert (code, "need 'labels' and one of" in err) == (2, True)

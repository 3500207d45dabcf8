"""Errors of all commands: one line that says what is wrong, code 2, and nothing is written."""

import json

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.calibrators.storage import save

FIT = "fit test.npz --calibrator temperature -o c.json"
TRAIN = "train --dataset blobs --model mlp"
CLASSES = "TemperatureScaling was fitted on 10 classes, got 3"
DEVICES = ("tpu", "meta", "mps", "xpu", "nonsense")
ERRORS = {
    "adit": "No such command 'adit'",
    "audit --bims 3": "No such option: --bims",
    "audit --bins many": "--bins",
    "audit --interval-type magic": "magic",
    "audit": ": give a file to audit, or --example\n",
    "audit --example perfect": "no example 'perfect'; expected one of calibrated, overconfident",
    "audit test.npz --max-ece=-1": "--max-ece must be at least 0",
    "audit test.npz --max-ece=nan": "--max-ece must be at least 0",
    "audit test.npz --figure a.png --no-figure": "give --figure or --no-figure, not both",
    "audit test.npz --logits z --probs p": "logits and probs; give one of --logits, --probs, ",
    "audit odd.npz --probs x --ignore p": "do not sum to 1 within 0.001 (row 0: 3); add --normaliz",
    "audit nan.npz": "name the arrays to read (--logits, --probs, --labels, or --confidence, --cor",
    "audit test.npz --correct x": "give --confidence and --correct",
    "audit test.npz --confidence x": "test.npz has no 'x'; it holds ['labels', 'probs']",
    "audit a.csv --labels y --labels id": ": --labels was given twice: give it once\n",
    "fit a.csv --calibrator platt --calibrator isotonic": ": --calibrator was given twice: give ",
    "compare a b --seed 1 --seed=2 --seed 3": ": --seed was given 3 times: give it once\n",
    "audit nowhere.csv": "no such file: nowhere.csv",
    "audit --example --seed -1": ": --seed must be at least 0, got -1\n",
    "compare a b --seed -1": ": --seed must be at least 0, got -1\n",
    "audit --example --bins 0": ": --bins must be at least 1, got 0\n",
    "audit --example --bins 1000000000": ": --bins must be at most 10,000, got 1000000000\n",
    "compare a b --bins 10001": ": --bins must be at most 10,000, got 10001\n",
    "audit --example --resamples 0": ": --resamples must be at least 1, got 0\n",
    "audit --example --resamples 99999999999999": (
        ": --resamples must be at most 1,000,000, got 99999999999999\n"
    ),
    "audit nowhere.npz": "no such file: nowhere.npz",
    "audit .": "no parquet or csv files in folder .",
    "audit odd.npz --logits x": "odd.npz has unknown arrays ['p']",
    "compare": "Missing argument",
    "compare test.npz": "give two files or more to compare, got test.npz",
    "compare test.npz three.npz --baseline test": "--baseline is for more than two files",
    "compare test.npz three.npz odd.npz --baseline x": "--baseline must be one of test.npz, three",
    "compare test.npz three.npz test.npz": "test.npz is given twice",
    "compare a.npz b.npz --metric eec": "no metric 'eec'; did you mean ece?",
    "audit --example overconfidnt": "no example 'overconfidnt'; did you mean overconfident?",
    "compare test.npz three.npz": (
        "same examples in the same order, but the labels, weights or groups of test.npz and "
        "three.npz differ; add --unpaired for different examples"
    ),
    "compare odd.npz odd.npz --probs x --ignore p": "probs",
    "fit test.npz --calibrator temprature -o c.json": (
        "no calibrator 'temprature'; did you mean temperature?"
    ),
    "fit test.npz --calibrator zzz -o c.json": "no calibrator 'zzz'; expected one of auto, ",
    "fit test.npz --calibrator vector --preserve-class -o c.json": (
        "vector may change the predicted class: leave out --preserve-class"
    ),
    "fit test.npz -o c.pkl": "c.pkl: calibrators are saved as .json",
    "fit test.npz --calibrator temperature -o no/c.json": "no folder no; create it first",
    "fit test.npz -o c.json --criterion mce": "no criterion 'mce'; expected one of nll, brier",
    "fit test.npz -o c.json --criterion brir": "no criterion 'brir'; did you mean brier?",
    "fit test.npz -o c.json --folds 1": "--folds must be at least 2, got 1",
    "fit test.npz --calibrator temperature": "Missing option",
    f"{FIT} --labels y": "test.npz has ['probs', 'labels']; need 'y'",
    "fit three.npz --calibrator temperature -o c.json": (
        ": cannot fit: labels hold a single class, 0\n"
    ),
    "apply cal.json three.npz -o out.npz": f"three.npz: {CLASSES}",
    "apply cal.json bare.npz -o out.npz": f"bare.npz: {CLASSES}",
    "apply none.json test.npz -o out.npz": "no such file: none.json",
    "apply cal.json none.npz -o out.npz": "no such file: none.npz",
    "apply test.npz test.npz -o out.npz": (
        "test.npz: not a calibrator file: not UTF-8 text; the file of `calibrant fit` comes first: "
        "calibrant apply CALIBRATOR FILE"
    ),
    "apply broken.json test.npz -o out.npz": "broken.json: unknown key 'evil' in the file",
    "apply cal.json cal.json -o out.npz": "unknown file type '.json'",
    "apply cal.json odd.npz -o out.npz": "odd.npz has ['x', 'p', 'labels']",
    "apply cal.json nan.npz -o out.npz": "nan.npz: logits contains 1 NaN",
    "apply cal.json test.npz -o out.pkl": "unknown file type '.pkl'; expected one of .npz",
    "apply cal.json test.npz -o ./test.npz": "is the file to read: give another name",
    "export cal.json -o cal.pt": "cal.pt: expected a name that ends in .onnx",
    "export none.json -o cal.onnx": "no such file: none.json",
    "export cal.json -o none/cal.onnx": "no folder none; create it first",
    "export cal.json": "Missing option",
    "list model": ": no list 'model'; did you mean models?",
    "list zzz": ": no list 'zzz'; expected one of metrics, losses, calibrators, methods, ",
    "audit --example --interval-type bc": "--interval-type': 'bc' is not one of",
    "study .": ". is a folder: pass the TOML file, or use `calibrant worker .`",
    "study no.toml": "no file no.toml; included studies: quickstart",
    "study tiny.toml --set recipe.epoch=3": "recipe.epoch",
    "study tiny.toml --workers 0": "--workers must be at least 1, got 0",
    "study tiny.toml --workers 2 --dask host:8786": "--dask uses those of a",
    "worker nowhere": "nowhere",
    "worker . --allow-code foo": "--allow-code takes package.module:factory, got 'foo'",
    "report nowhere": "no study in nowhere: run one with calibrant study",
    f"{TRAIN} --method focl": "no method 'focl'; did you mean focal?",
    "train --dataset blobs --model resnet9": "resnet",
    "train --dataset blobs --model unet": "model unet is for masks, dataset blobs has",
    "train --dataset blobs --model text_cnn": "has vectors; choose one of mlp",
    "train --dataset digit --model mlp": "digits",
    f"{TRAIN} --data-set digits": "--data-set takes name=value, such as limit=2000; got 'digits'",
    f"{TRAIN} --method-set gamma": "--method-set takes name=value, such as gamma=3; got 'gamma'",
    f"{TRAIN} --method-set gamma=1": "method cross_entropy has no setting 'gamma'",
    f"{TRAIN} --method-set name=3": "--method-set cannot set a name",
    f"{TRAIN} --recipe-set moment=1": "no setting 'moment' of a recipe; did you mean momentum?",
    f"{TRAIN} --recipe-set momentum=fast": "momentum must be a number, got 'fast'",
    f"{TRAIN} --recipe-set clip=1 --recipe-set clip=2": "clip is given twice",
    f"{TRAIN} --recipe-set lr=1": "--recipe-set lr has an option of its own: --lr",
    f"{TRAIN} --seed 99999999999999999999999": "--seed must be at most",
    f"{TRAIN} --optimizer adam": "optimizer must be one of ['sgd', 'adamw', ",
    **{f"{TRAIN} --device {x}": f"no device '{x}'; expected auto, cpu or cuda" for x in DEVICES},
    f"{TRAIN} --device cuda:99": "no CUDA device 'cuda:99'",
    f"{TRAIN} --epochs 0": "epochs must be at least 1, got 0",
    f"{TRAIN} --devices 0": "--devices must be at least 1, got 0",
}


@pytest.fixture
def folder(file, tmp_path):
    save(TemperatureScaling(classes=10, temperature=2.0), tmp_path / "cal.json")
    record = json.loads((tmp_path / "cal.json").read_text()) | {"evil": 1}
    (tmp_path / "broken.json").write_text(json.dumps(record))
    Predictions([[1.0, 0.0, 2.0]] * 2, [0, 0]).save(tmp_path / "three.npz")
    np.savez(tmp_path / "bare.npz", logits=np.ones((2, 3)))
    np.savez(tmp_path / "odd.npz", x=np.ones((2, 3)), p=np.ones((2, 3)), labels=[0, 1])
    np.savez(tmp_path / "nan.npz", logits=np.where(np.arange(20) == 3, np.nan, 0).reshape(2, 10))
    (tmp_path / "tiny.toml").write_text('[[dataset]]\nname = "blobs"\n')
    return tmp_path


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("command", "words"), ERRORS.items(), ids=ERRORS)
def test_every_error_is_one_line_without_a_traceback(run, folder, command, words):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert err.startswith("calibrant: ")
    assert err.count("\n") == 1
    assert words in err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("args", [["--debug", "audit", "x.npz"], ["audit", "x.npz", "--debug"]])
def test_debug_shows_the_traceback(run, args):
    code, _, err = run(*args)
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert "FileNotFoundError: no such file: x.npz" in err

"""Studies with a probe: what the file may say, and what each run then holds."""

from small_studies import SMALL

from calibrant.cli import main
from calibrant.study import runner
from calibrant.study.folder import read_study, saved_runs
from calibrant.study.spec import parse
from calibrant.training.folder import PROBED, read_history

SMALL = {
    **SMALL,
    "seeds": [0],
    "optimizer": [{"name": "sgd", "lr": 0.05, "epochs": 2}, {"name": "gd", "epochs": 3}],
    "recipe": {"batch": 64},
}
PROBE = {"every": 2, "examples": 50, "measures": ["calibration", "gauss_newton"]}


def test_every_run_holds_its_readings_and_a_report_can_be_drawn(alone, tmp_path, capsys):
    runner.run(parse({**SMALL, "probe": PROBE}), tmp_path)
    study = read_study(tmp_path)
    assert study.probe == PROBE
    for id, cell in study.by_id.items():
        rows = read_history(saved_runs(tmp_path).folder_of(id), name=PROBED)
        # Three steps of full-batch descent; two epochs of three batches.
        last = 3 if cell.optimizer.name == "gd" else 2 * (len_of_train(cell) // 64)
        assert [row["step"] for row in rows] == sorted({*range(0, last, 2), last})
        assert {"train_ece", "val_ece", "gauss_newton", "edge"} <= rows[0].keys()
        assert "hessian" not in rows[0]
    assert main(["report", str(tmp_path)]) == 0
    capsys.readouterr()


def len_of_train(cell):
    from calibrant import data

    return len(data.load("blobs", cell.seed, limit=300).train)


def test_a_study_without_a_probe_has_the_ids_it_always_had():
    plain, probed = parse(SMALL), parse({**SMALL, "probe": {}})
    assert plain.probe is None
    assert "probe" not in plain.as_dict()
    assert not any("probe" in cell.config() for cell in plain.cells())
    assert not set(plain.by_id) & set(probed.by_id)
    # Defaults that are written out change nothing.
    assert probed.by_id.keys() == parse({**SMALL, "probe": {"every": 100}}).by_id.keys()

"""Logs of language models from one end of the command line to the other."""

import json

import numpy as np
import pytest

from calibrant import Predictions

# Temperatures of the tasks of one model; the confidence of `law` is far too high.
TEMPERATURES = {"law": 3.0, "maths": 1.0, "poems": 1.0}
LOG = "samples_{}_2026-05-01T10-00-00.000000.jsonl"
QUICK = ("--resamples", 10, "--no-figure", "--no-page")


def write_task(folder, task, temperature, questions=1200, *, seed=0, sharper=1.0):
    """A sample log of questions with 2 to 4 options, as the harness writes it."""
    generator = np.random.default_rng([seed, len(task)])
    folder.mkdir(exist_ok=True)
    with open(folder / LOG.format(task), "w") as file:
        for at in range(questions):
            true = 2 * generator.normal(size=generator.integers(2, 5))
            right = int((true + generator.gumbel(size=len(true))).argmax())
            values = [repr(float(each)) for each in temperature * sharper * true - 20]
            names = [f" option {each}" for each in range(len(true))]
            line = {
                "doc_id": at,
                "target": str(right),
                "arguments": {
                    f"gen_args_{i}": {"arg_0": "Which?", "arg_1": n} for i, n in enumerate(names)
                },
                "filtered_resps": [[value, "False"] for value in values],
                "filter": "none",
                "acc": float(true.argmax() == right),
            }
            file.write(json.dumps(line) + "\n")


@pytest.fixture
def logs(tmp_path):
    """Logs of three tasks of one model; returns the pattern."""
    for task, temperature in TEMPERATURES.items():
        write_task(tmp_path / "val", task, temperature)
    return "val/*.jsonl"


def test_an_audit_by_task_names_the_task_whose_confidence_is_wrong(run, logs):
    code, out, err = run(
        "audit", logs, "--format", "lm-eval", "--by", "task", "--no-page", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    rows = {row["where"]["task"]: row for row in found["slices"]["found"]}
    assert next(iter(rows)) == "law"
    assert rows["law"]["corrected"] < 1e-6
    assert rows["law"]["mean_gap"]["value"] > 0.08
    assert min(rows[name]["corrected"] for name in ("maths", "poems")) > 0.05
    assert "3 tasks, 2 to 4 options, accuracy of guessing 0.3" in str(found["notes"])


def test_a_fit_by_task_finds_the_temperature_of_each(run, logs, tmp_path):
    options = ("--format", "lm-eval", "--by", "task", "--calibrator", "temperature")
    code, out, err = run("fit", logs, *options, "--folds", 2, "-o", "cal.json", "--json")
    assert code == 0, err
    found = {each["slice"][0]: each for each in json.loads(out)["slices"]}
    for task, temperature in TEMPERATURES.items():
        assert found[task]["shrunk"]["temperature"] == pytest.approx(temperature, rel=0.15)
    write_task(tmp_path / "test", "law", TEMPERATURES["law"], seed=1)
    log = f"test/{LOG.format('law')}"
    code, out, err = run("apply", "cal.json", log, *options[:2], "-o", "out.npz", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["after"]["ece"] < 0.5 * result["before"]["ece"]
    assert result["after"]["accuracy"] == result["before"]["accuracy"]


def test_apply_adds_probabilities_to_the_lines_and_keeps_all_else(run, logs, tmp_path):
    options = ("--format", "lm-eval", "--calibrator", "temperature")
    assert run("fit", logs, *options, "-o", "cal.json")[0] == 0
    # Tasks may have fewer options than those of the fit.
    source = tmp_path / "two.jsonl"
    lines = (tmp_path / "val" / LOG.format("law")).read_text().splitlines()
    source.write_text("\n".join(x for x in lines if len(json.loads(x)["filtered_resps"]) == 2))
    code, _, err = run("apply", "cal.json", source, *options[:2], "-o", "out.jsonl")
    assert code == 0, err
    added = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    probs = [each.pop("calibrated_probs") for each in added]
    given = [json.loads(line) for line in source.read_text().splitlines()]
    assert added == [line | {"task": "two"} for line in given]
    temperature = json.loads((tmp_path / "cal.json").read_text())["parameters"]["temperature"]
    for line, row in zip(added, probs, strict=True):
        scores = np.array([float(value) for value, _ in line["filtered_resps"]]) / temperature
        expected = np.exp(scores - np.logaddexp.reduce(scores))
        assert row == pytest.approx(expected.tolist(), abs=1e-9)
    code, _, err = run("apply", "cal.json", "out.jsonl", *options[:2], "-o", "again.jsonl")
    assert code == 2
    assert "line 1 has a field 'calibrated_probs' already" in err
    assert not (tmp_path / "again.jsonl").exists()


def test_calibrated_lines_of_several_tasks_can_be_read_again(run, logs, tmp_path):
    # Targets of this task are texts, and its options begin with two spaces.
    with open(tmp_path / "val" / LOG.format("songs"), "w") as file:
        for at in range(150):
            line = {
                "doc_id": at,
                "target": "ab"[at % 2],
                "arguments": [["Which?", "  a"], ["Which?", "  b"]],
                "filtered_resps": [["-1.0", "False"], ["-2.0", "False"]],
                "acc": 1.0 - at % 2,
            }
            file.write(json.dumps(line) + "\n")
    options = ("--format", "lm-eval", "--calibrator", "temperature")
    assert run("fit", logs, *options, "-o", "cal.json")[0] == 0
    again = ("--allow-same", "-o", "out.jsonl")
    code, _, err = run("apply", "cal.json", logs, *options[:2], *again)
    assert code == 0, err
    found = []
    for source in (logs, "out.jsonl"):
        more = ("--by", "task", "--no-page", "--json")
        code, out, err = run("audit", source, *options[:2], *more)
        assert code == 0, err
        found.append(json.loads(out))
    assert len(found[0]["slices"]["found"]) == 4
    assert found[1]["slices"] == found[0]["slices"]
    assert found[1]["metrics"] == found[0]["metrics"]


@pytest.mark.parametrize("by", [(), ("--by", "task", "--folds", 2)])
def test_a_calibrator_is_not_applied_to_scores_of_another_normalization(run, logs, by):
    options = ("--format", "lm-eval")
    fit = (*options, "--calibrator", "temperature", *by, "-o", "cal.json")
    assert run("fit", logs, *fit)[0] == 0
    apply = ("apply", "cal.json", logs, *options, "--allow-same", "-o", "out.npz")
    code, _, err = run(*apply, "--normalize-by", "characters")
    assert code == 2
    assert err == (
        "calibrant: val/*.jsonl: scores are lm-eval, normalized by characters, those of the fit "
        "were lm-eval, normalized by none: give the same --normalize-by\n"
    )
    assert run(*apply)[0] == 0


def test_models_are_compared_on_the_same_tasks_only(run, tmp_path):
    for model, sharper in (("a", 1.0), ("b", 3.0)):
        write_task(tmp_path / model, "maths", 1.0, 300, sharper=sharper)
    one, two = (f"{model}/{LOG.format('maths')}" for model in "ab")
    options = ("--json", "--metric", "nll", "--resamples", 100)
    code, out, err = run("compare", one, two, "--format", "lm-eval", *options)
    assert code == 0, err
    assert json.loads(out)["metrics"]["nll"]["better"] == "A"
    code, out, err = run("audit", one, two, "--format", "lm-eval", *QUICK)
    assert code == 0
    assert "2 models, 300 examples each: the same examples" in out
    write_task(tmp_path / "a", "law", 1.0, 300)
    code, _, err = run("audit", "a/*.jsonl", "--format", "lm-eval", *QUICK)
    assert code == 2
    assert "models are compared on the same tasks, got ['law'] in" in err
    assert run("audit", "a/*.jsonl", "--format", "lm-eval", "--pool", *QUICK)[0] == 0


def test_the_next_step_of_an_audit_is_a_command_that_works(run, tmp_path):
    write_task(tmp_path / "val", "law", 3.0)
    code, out, err = run("audit", f"val/{LOG.format('law')}", "--format", "lm-eval", *QUICK)
    assert code == 0
    assert "1 task, 2 to 4 options, accuracy of guessing 0.3" in err
    (line,) = [each for each in out.splitlines() if each.startswith("next step: calibrant fit")]
    command = line.removeprefix("next step: calibrant ").split()
    assert "--format" in command
    assert run(*command)[0] == 0


def test_option_tokens_and_free_answers_are_named_by_options(run, tmp_path):
    tops = [{"token": "A", "logprob": -0.1}, {"token": " B", "logprob": -2.4}]
    content = [{"token": "A", "logprob": -0.1, "top_logprobs": tops}]
    lines = [{"choices": [{"logprobs": {"content": content}}], "gold": x} for x in "AAABABAA"]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ("--format", "openai", "--names", "A,B", "--labels", "gold")
    code, out, err = run("audit", "chat.jsonl", *options, *QUICK)
    assert code == 0, err
    assert "positive class B: base rate 25.0 %" in out
    lines = [{"sure": 10 * at, "correct": at % 2, "task": "ab"[at % 2]} for at in range(11)]
    (tmp_path / "free.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ("--format", "confidence", "--confidence", "sure", "--scale", "percent")
    code, out, err = run("audit", "free.jsonl", *options, *QUICK)
    assert code == 0, err
    assert "mean confidence 0.5000" in out
    more = ("--by", "task", "--min-rows", 2, "--no-page")
    code, out, err = run("audit", "free.jsonl", *options, *more)
    assert code == 0, err
    assert "task=a" in out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("audit x.jsonl --format lmeval", "no --format 'lmeval'; did you mean lm-eval?"),
        ("audit x.jsonl --format lm-eval --probs p", "--probs cannot be used with --format lm-ev"),
        (
            "audit x.jsonl --format openai --normalize-by bytes",
            "--normalize-by cannot be used with",
        ),
        ("audit x.jsonl --format lm-eval --by task --time t", "--time cannot be used with --form"),
        ("audit x.jsonl --format lm-eval --by year", "no column 'year' to slice by; a log has"),
        ("audit x.npz --scale percent", "--scale cannot be used with these files: add --format"),
        ("fit x.jsonl -o cal.json", ".safetensors; JSON lines of a language model need --format"),
        ("fit x.jsonl --format confidence -o c.json", "no 'confidence'; the line has"),
        ("audit y.jsonl --format lm-eval", "no such file: y.jsonl"),
        ("fit x.jsonl --format lm-eval --by task --calibrator platt -o c.json", "cannot be fitted"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(run, tmp_path, command, message):
    write_task(tmp_path, "x", 1.0, 30)
    (tmp_path / LOG.format("x")).rename(tmp_path / "x.jsonl")
    Predictions([[1.0, 0.0]], [0]).save(tmp_path / "x.npz")
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1

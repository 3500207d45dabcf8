"""Read sample logs of lm-evaluation-harness, and fit a temperature to each task: the lines (*)."""

import json
import tempfile
from pathlib import Path

import numpy as np

from calibrant import metrics
from calibrant.calibrators import SlicedCalibrator
from calibrant.language_models import read  # (*)

# Your own logs come from `lm_eval run ... --log_samples`. Here we write logs of three tasks, with
# 2 to 5 options in a question; the log-likelihoods of two tasks are too far apart.
SHARPNESS = {"law": 3.0, "maths": 1.0, "medicine": 1.8}


def write_log(folder: Path, task: str, questions: int) -> None:
    """Write a log as the harness does."""
    rng = np.random.default_rng([len(task), questions])
    with open(folder / f"samples_{task}_2026-05-01T10-00-00.000000.jsonl", "w") as file:
        for doc_id in range(questions):
            true = rng.normal(0, 2, rng.integers(2, 6))
            right = (true + rng.gumbel(size=true.shape)).argmax()
            found = (SHARPNESS[task] * true - 30).tolist()
            line = {
                "doc_id": doc_id,
                "target": str(right),
                "arguments": [["Question?", f" option {each}"] for each in range(len(true))],
                "filtered_resps": [[str(each), "False"] for each in found],
                "acc": float(true.argmax() == right),
            }
            file.write(json.dumps(line) + "\n")


logs = {}
for part, questions in (("val", 1000), ("test", 3000)):
    folder = Path(tempfile.mkdtemp())
    for task in SHARPNESS:
        write_log(folder, task, questions)
    logs[part] = read(folder / "samples_*.jsonl", "lm-eval")  # (*) several files are one model

val, test = logs["val"], logs["test"]
print(f"{test.predictions}: {test.facts}")
print(f"as logged             ECE {metrics.ece(test.predictions):.3f}")

# A temperature for each task, shrunk towards that of all tasks.
sliced = SlicedCalibrator.fit(val.predictions, {"task": val.slices["task"]})  # (*)
after = sliced.map(test.predictions, {"task": test.slices["task"]})  # (*)
print(f"temperature by task   ECE {metrics.ece(after):.3f}")
for each in sliced.summaries:
    print(f"  {each.key[0]:9} temperature {each.shrunk.temperature:.2f}")

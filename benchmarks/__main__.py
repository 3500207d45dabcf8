"""Run the benchmarks: `python -m benchmarks [name ...]`, and write them into the page."""

import argparse
import sys
import time
from importlib import import_module

import torch

from benchmarks.inputs import SEED
from benchmarks.measure import HEAD, Section
from benchmarks.pages import machine, table, versions
from benchmarks.real_data import ROOT

# Module and function; imported when run, because only some need the other libraries.
BENCHMARKS = {
    "logits": "from_logits.run",
    "classwise": "per_class.run",
    "sece": "kernels.run_sece",
    "smece": "kernels.run_smece",
    "interval": "resampling.run",
    "stream": "streaming.run",
    "large_audit": "large_audit.run",
    "tables": "tables.run",
    "metrics": "every_metric.run",
    "calibrators": "calibrator_fits.run",
    "selection": "selection_cost.run",
    "training": "training_loop.run",
    "steps": "step_cost.run_small",
    "large_steps": "step_cost.run_large",
    "curvature": "curvature_cost.run",
}
PAGE = ROOT / "docs" / "benchmarks.md"
ABOUT = f"""# Speed and memory compared with other libraries

This page shows the speed and memory of calibrant next to other libraries or hand-written code,
measured in the same run. To measure on your machine:

```
make bench                                        # everything, about an hour; rewrites this page
.venv-rivals/bin/python -m benchmarks logits sece    # selected benchmarks
.venv/bin/python -m benchmarks tables                # this one needs no other library
```

- calibrant and the other library run alternately in one process after a warm-up; the best of
  several runs counts.
- "measured" is the ratio or value that is compared with the goal in the next column. Look at the
  ratios: times depend on the machine and its load.
- All data is generated with seed {SEED}."""


def main() -> int:
    """Run the named benchmarks, print one table; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--threads", type=int, help="for torch; its own default if not given")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown {sorted(unknown)}; choose from {list(BENCHMARKS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    sections = []
    for name in options.names or BENCHMARKS:
        start = time.perf_counter()
        module, function = BENCHMARKS[name].split(".")
        sections.append(getattr(import_module(f"benchmarks.{module}"), function)())
        took = time.perf_counter() - start
        print(f"{name}: measured in {took:.0f} s", file=sys.stderr, flush=True)
    lines = [line for section in sections for line in section.lines]
    missed = [line for line in lines if line.passed is False]
    print(machine(), versions(), sep="\n")
    print(table(HEAD, [line.cells() for line in lines]))
    held = sum(line.passed is True for line in lines)
    print(f"{held} goals met, {len(missed)} missed")
    if not options.threads:
        before = PAGE.read_text() if options.names and PAGE.exists() else ""
        PAGE.write_text(page(sections, before))
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 1 if missed else 0


def page(sections: list[Section], before: str = "") -> str:
    """Compose the page of results; sections not measured now stay as they are.

    The machine and versions above all sections are those of the first run; a section that was
    measured on another machine names its own.
    """
    measured = [f"{machine()}.", f"{versions()}."]
    head, *old = before.split("\n## ")
    above = head.strip().split("\n\n")[-2:] if before else measured
    kept = {text.partition("\n")[0]: text.strip() for text in old}
    for section in sections:
        cells = table(HEAD, [line.cells() for line in section.lines])
        own = [] if above[0] == measured[0] else measured
        kept[section.title] = "\n\n".join([section.title, section.about, *own, cells])
    return "\n\n".join([ABOUT, *above, *(f"## {each}" for each in kept.values())]) + "\n"


if __name__ == "__main__":
    sys.exit(main())

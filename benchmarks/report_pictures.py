"""Pictures of reports for the documentation: `python -m benchmarks.report_pictures STUDY`.

The study is the quickstart (`make quickstart`); a browser (chromium) must be installed.
"""

import io
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.real_data import ROOT
from calibrant.predictions import Predictions
from calibrant.report.audit import Audit, audit
from calibrant.report.model_audits import ModelAudits
from calibrant.report.study_page import study_page

# Of each picture: the part of the page from the top, in pixels, and whether it is dark.
PICTURES = {
    "report": (0, 900, False),
    "report-dark": (0, 900, True),
    "report-panels": (1650, 2640, False),
}
# Of each audit: the part of the page from the top.
AUDITS = {"audit-binary": 1330, "audit-models": 1430}
WIDTH, COLOURS = 1280, 224
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


def main(folder: str) -> int:
    """Draw the page of a study, and take the pictures."""
    address = study_page(folder).resolve().as_uri()
    for name, (top, bottom, dark) in PICTURES.items():
        _take(name, address, top, bottom, dark=dark)
    with tempfile.TemporaryDirectory() as made:
        for name, found in audits().items():
            page = found.save(Path(made) / f"{name}.html")
            _take(name, page.as_uri(), 0, AUDITS[name], dark=False)
    return 0


def audits() -> dict[str, Audit | ModelAudits]:
    """Two classes with a rare positive one, and three models of the same examples."""
    generator = np.random.default_rng(0)
    odds = 1.6 * generator.normal(size=5000) - 1
    ill = generator.random(5000) < 1 / (1 + np.exp(0.7 - 0.6 * odds))
    two = Predictions.from_binary(
        odds, ill.astype(int), kind="logits", class_names=["healthy", "ill"]
    )
    logits = 2 * generator.normal(size=(4000, 5))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    scales = {"large": 2.0, "ensemble": 1.0, "smoothed": 0.6}
    models = {name: Predictions(scale * logits, labels) for name, scale in scales.items()}
    found = audit(models).with_files({name: f"{name}.npz" for name in models})
    alone = replace(audit(two, name="screening.npz"), file="screening.npz")
    return {"audit-binary": alone, "audit-models": found}


def _take(name: str, address: str, top: int, bottom: int, *, dark: bool) -> None:
    path = ROOT / "docs" / f"{name}.png"
    seen = Image.open(io.BytesIO(shot(address, bottom, dark=dark)))
    part = seen.convert("RGB").crop((0, top, WIDTH, bottom))
    part.quantize(COLOURS).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KB")


def shot(address: str, height: int, *, dark: bool) -> bytes:
    """What a browser shows of a page, as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        size = f"--window-size={WIDTH},{height}"
        more = ["--blink-settings=preferredColorScheme=0"] if dark else []
        options = [*FLAGS, *more, "--hide-scrollbars", size, f"--screenshot={path}"]
        quiet = subprocess.DEVNULL
        command = ["chromium", *options, f"--user-data-dir={folder}/profile", address]
        subprocess.run(command, check=True, stdout=quiet, stderr=quiet, timeout=120)  # noqa: S603
        return path.read_bytes()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Pictures of the report for the documentation: `python -m benchmarks.report_pictures STUDY`.

The study is the quickstart (`make quickstart`); a browser (chromium) must be installed.
"""

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.real_data import ROOT
from calibrant.report.study_page import study_page

# Of each picture: the part of the page from the top, in pixels, and whether it is dark.
PICTURES = {
    "report": (0, 900, False),
    "report-dark": (0, 900, True),
    "report-panels": (1590, 3070, False),
}
WIDTH, COLOURS = 1280, 224
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


def main(folder: str) -> int:
    """Draw the page of a study, and take the pictures."""
    address = study_page(folder).resolve().as_uri()
    for name, (top, bottom, dark) in PICTURES.items():
        path = ROOT / "docs" / f"{name}.png"
        seen = Image.open(io.BytesIO(shot(address, bottom, dark=dark)))
        part = seen.convert("RGB").crop((0, top, WIDTH, bottom))
        part.quantize(COLOURS).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KB")
    return 0


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

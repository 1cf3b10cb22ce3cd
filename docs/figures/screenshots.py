"""Takes the pictures of a run's and of a study's page: needs Chromium, and both runs.

    python -m docs.figures.screenshots runs/first runs/five_methods

The runs are those of the quick start and of the README.
"""

import subprocess
import sys
from pathlib import Path

STATIC = Path(__file__).parents[1] / "_static"


def main(run: str, study: str) -> None:
    """Writes `page_run.png` and `page_study.png`."""
    for name, folder in {"page_run": run, "page_study": study}.items():
        page, picture = Path(folder).resolve() / "report.html", STATIC / f"{name}.png"
        look = ["--headless", "--no-sandbox", "--hide-scrollbars"]
        look += ["--window-size=1000,870", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(["chromium", *look], check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

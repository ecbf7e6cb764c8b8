"""Build the book into _build/html, with warnings as errors, from the repository's root.

    python -m tools.build_book
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "_build"
# Of the typesetting library's files, what a page of the book loads; the rest is three quarters of it.
MATHJAX_KEPT = ("tex-chtml.js", "output/chtml", "input/tex/extensions", "a11y", "sre", "ui")


def build() -> int:
    """Run the builder; a failed build is removed, since pages it has already read would pass in silence next time."""
    command = [str(Path(sys.executable).parent / "jupyter-book"), "build", str(ROOT), "-W", "-n", "--keep-going"]
    status = subprocess.run(command, cwd=ROOT).returncode
    if status:
        shutil.rmtree(BUILD, ignore_errors=True)
        print("The book was not built: each line with WARNING or ERROR above is a fault in a page.", file=sys.stderr)
        return status
    trim_mathjax(BUILD / "html" / "_static" / "mathjax")
    return 0


def trim_mathjax(folder: Path) -> None:
    """Remove what no page loads."""
    kept = [folder / name for name in MATHJAX_KEPT]
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and not any(path == keep or keep in path.parents for keep in kept):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


if __name__ == "__main__":
    sys.exit(build())

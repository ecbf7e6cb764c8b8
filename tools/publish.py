"""Write the address at which the book is published into the copy that is published.

    python -m tools.publish --repository https://github.com/OWNER/NAME --commit SHA

The address then stands in _config.yml, from where the book's Colab buttons take it, and in the setup cell of every
notebook, which in Colab installs the package from that very commit. The publishing workflow runs this on a checkout
that it pushes as the branch `published`; the branch `main` never contains an address.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "published"
COLAB = "https://colab.research.google.com"
ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")
COMMIT = re.compile(r"[0-9a-f]{40}")


class NotPublishable(ValueError):
    """The address, the commit or the checkout is not what publishing needs."""


def publish(root: Path, repository: str, commit: str) -> None:
    """Fill in the address everywhere, or, if anything is not as expected, nowhere.

    Raises:
        NotPublishable: the address or the commit has the wrong form, or a file has no place for it.
    """
    if not ADDRESS.fullmatch(repository):
        raise NotPublishable(f"the repository is an address like https://github.com/OWNER/NAME, but {repository!r} was given")
    if not COMMIT.fullmatch(commit):
        raise NotPublishable(f"the commit is its full name, 40 hexadecimal digits, but {commit!r} was given")
    texts = {
        root / "_config.yml": [
            ('url: ""', f'url: "{repository}"'),
            ("branch: main", f"branch: {BRANCH}"),
            ("launch_buttons: {}", f'launch_buttons: {{colab_url: "{COLAB}"}}'),
        ]
    }
    for notebook in sorted((root / "notebooks").glob("[0-9][0-9]_*")):
        empty, filled = 'REPOSITORY = ""', f'REPOSITORY = "{repository}@{commit}"'
        if notebook.suffix == ".ipynb":  # there a quotation mark is written \"
            empty, filled = empty.replace('"', r"\""), filled.replace('"', r"\"")
        texts[notebook] = [(empty, filled)]
    for path, changes in texts.items():
        text = path.read_text(encoding="utf-8")
        for empty, filled in changes:
            if text.count(empty) != 1:
                raise NotPublishable(f"{path.name} has {text.count(empty)} places {empty}, where one is wanted: is it published already?")
            text = text.replace(empty, filled)
        texts[path] = text
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Publish this checkout; one line and status 2 where it cannot be."""
    parser = argparse.ArgumentParser(description="Write the address of the published book into this checkout.")
    parser.add_argument("--repository", required=True, help="https://github.com/OWNER/NAME")
    parser.add_argument("--commit", required=True, help="the full name of the commit that is published")
    arguments = parser.parse_args()
    try:
        publish(ROOT, arguments.repository, arguments.commit)
    except NotPublishable as error:
        print(f"publish: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

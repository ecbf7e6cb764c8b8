"""What the README tells a newcomer is true."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_package_example_runs():
    for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(code, {})


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make (book|test|serve|notebooks|bench|clean)\b", README))))
def test_each_command_exists_and_make_explains_it(target):
    explained = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"make {target}" in explained
    subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, check=True)


def test_every_file_it_names_exists():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_the_project_installs_from_nowhere_it_does_not_own():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        path = ROOT / name
        if path.suffix in {".py", ".ipynb", ".md", ".txt", ".toml", ".yml"} and not name.startswith("tests/"):
            assert not re.search(r"git\+https?://(?!github\.com/OWNER)", path.read_text()), name

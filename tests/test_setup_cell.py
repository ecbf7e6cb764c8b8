"""The setup cell where readers meet it: in a clone, after installation, in Colab, and lost."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CELL = (ROOT / "tools" / "setup_cell.py").read_text()

# Runs the cell as a notebook would, but with the package hidden as if it were not installed, unless a clone is found,
# and with pip replaced by a record of what it was asked to do.
HARNESS = """
import importlib.util, json, subprocess, sys, types
cell, installed, colab, missing = json.loads(sys.argv[1])
asked = []
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in missing or (name == "annotated_s4" and not installed and not any("clone-of-this-test" in entry for entry in sys.path)):
            raise ModuleNotFoundError(name, name=name)
real = importlib.util.find_spec
def find_spec(name, package=None):
    try:
        Hidden().find_spec(name)
    except ModuleNotFoundError:
        return None
    return real(name, package)
importlib.util.find_spec = find_spec
def pip(command, check):
    asked.append(command[1:])
    global installed
    installed = True
subprocess.run = pip
import jax  # in Colab it is there, and looks for more of google.colab than the stand-in below has
if colab:
    sys.modules["google.colab"] = types.ModuleType("google.colab")
try:
    exec(cell, {})
except ModuleNotFoundError as error:
    print("refused:", error)
print("asked:", json.dumps(asked))
"""


def run(folder, *, cell=CELL, installed=True, colab=False, missing=()):
    arguments = json.dumps([cell, installed, colab, list(missing)])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", HARNESS, arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(re.search("asked: (.*)", result.stdout)[1])


def test_after_installation_from_any_folder(tmp_path):
    output, asked = run(tmp_path)
    assert "jaxlib" in output and "float64" in output and not asked


@pytest.mark.parametrize("where", [".", "notebooks", "book/deeper"])
def test_in_a_clone_from_any_of_its_folders(tmp_path, where):
    clone = tmp_path / "clone-of-this-test"
    (clone / where).mkdir(parents=True)
    (clone / "annotated_s4").symlink_to(ROOT / "annotated_s4")
    output, asked = run(clone / where, installed=False)
    assert "jaxlib" in output and not asked


def test_lost_it_says_what_to_do(tmp_path):
    output, asked = run(tmp_path, installed=False)
    assert "refused:" in output and "pip install ." in output and not asked


def test_in_colab_nothing_is_installed_from_an_address_that_is_not_known(tmp_path):
    output, asked = run(tmp_path, installed=False, colab=True)
    assert "refused:" in output and "published book" in output and not asked


def test_in_colab_only_what_is_missing_is_installed_and_jax_is_held(tmp_path):
    import jax
    import jaxlib

    address = "https://github.com/owner/name@" + "0" * 40
    cell = CELL.replace('REPOSITORY = ""', f'REPOSITORY = "{address}"')
    output, asked = run(tmp_path, cell=cell, installed=False, colab=True, missing=["jaxtyping"])
    package, others = asked
    assert "--no-deps" in package and package[-1] == f"annotated-s4 @ git+{address}"
    assert set(others[4:]) == {"jaxtyping", f"jax=={jax.__version__}", f"jaxlib=={jaxlib.__version__}"}


def test_in_colab_with_everything_there_one_call_is_enough(tmp_path):
    cell = CELL.replace('REPOSITORY = ""', 'REPOSITORY = "https://github.com/owner/name@abc"')
    _, asked = run(tmp_path, cell=cell, installed=False, colab=True)
    assert len(asked) == 1 and "--no-deps" in asked[0]

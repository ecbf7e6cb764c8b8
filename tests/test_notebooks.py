"""The notebooks as files: pairs that agree, one clean run, the same setup, a text for every figure."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from tools import notebooks

ROOT = Path(__file__).resolve().parent.parent
SOURCES = notebooks.sources()
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def executed(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def test_every_file_is_one_of_a_pair():
    stems = {path.stem for path in SOURCES}
    assert stems, "there are no notebooks"
    assert {path.stem for path in notebooks.NOTEBOOKS.glob("*.ipynb")} == stems


@each_notebook
def test_source_and_notebook_agree(source):
    assert notebooks.drift(source) is None, f"{notebooks.drift(source)}: run `make notebooks`"


@each_notebook
def test_cells_ran_once_from_top_to_bottom(source):
    assert notebooks.disorder(source) is None, f"{notebooks.disorder(source)}: run `make notebooks`"


@each_notebook
def test_no_cell_failed_or_warned(source):
    for cell in executed(source).cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text


@each_notebook
def test_setup_cell_is_the_same_but_for_the_precision(source):
    setup = (ROOT / "tools" / "setup_cell.py").read_text()
    wanted, found = jupytext.reads(setup, "py:percent").cells[0], [
        cell for cell in jupytext.read(source).cells if "setup" in cell.metadata.get("tags", [])
    ]
    assert len(found) == 1
    anything = lambda text: re.sub(r'precision="float(32|64)"', "precision", text)
    assert anything(found[0].source) == anything(wanted.source)
    assert sorted(found[0].metadata["tags"]) == sorted(wanted.metadata["tags"])


@each_notebook
def test_every_figure_has_a_text_and_a_cell_of_its_own(source):
    for cell in executed(source).cells:
        pictures = [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
        assert len(pictures) <= 1, f"two figures in one cell: {cell.source}"
        for picture in pictures:
            alt = picture.metadata["image/png"]["alt"]
            assert len(alt) > 40, f"hardly a description: {alt!r}"
            assert cell.metadata["mystnb"]["image"]["alt"] == alt, "run `make notebooks`"


@each_notebook
def test_figures_are_small(source):
    """At most 100 dots per inch and what a page can carry: three megabytes with all its pictures."""
    assert source.with_suffix(".ipynb").stat().st_size < 3_000_000


@each_notebook
def test_exercises_have_solutions_that_run(source):
    cells = jupytext.read(source).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    exercises = re.findall(r"\{exercise\}[^\n]*\n:label: (\S+)", text)
    if source.stem != "00_primer":
        assert 3 <= len(exercises) <= 5
    for label in exercises:
        begins = [i for i, cell in enumerate(cells) if f"{{solution-start}} {label}\n" in cell.source]
        assert len(begins) == 1, f"{label} has {len(begins)} solutions"
        assert ":class: dropdown" in cells[begins[0]].source, f"the solution of {label} does not fold away"
        after = cells[begins[0] + 1 :]
        end = next(i for i, cell in enumerate(after) if "{solution-end}" in cell.source)
        code = "\n".join(cell.source for cell in after[:end] if cell.cell_type == "code")
        assert "assert" in code, f"the solution of {label} asserts nothing"


# What makes `pytest --nbval` fail, and what does not. Tried on a copy of a small notebook.

SMALL = """# %%
import warnings
{warning}
print("the answer is {number}")

# %%
import sys
print("progress {number}", file=sys.stderr)
"""


@pytest.fixture
def folder(tmp_path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nbval-current-env -p no:cacheprovider\n")
    return tmp_path


def write(path, number=42, warning=""):
    """An executed notebook, as if it had printed the number."""
    notebook = jupytext.reads(SMALL.format(number=number, warning=warning), "py:percent")
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for count, cell in enumerate(notebook.cells, 1):
        cell.execution_count = count
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"the answer is {number}\n")]
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", name="stderr", text="progress 0\n")]
    nbformat.write(notebook, path)
    return notebook


def nbval(folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_warning_and_another_progress_line_pass_and_a_changed_digit_does_not(folder):
    path = folder / "small.ipynb"
    write(path, warning='warnings.warn("something is deprecated")')
    result = nbval(folder)
    assert result.returncode == 0, result.stdout
    assert "time of each chapter" in result.stdout
    text = path.read_text()
    path.write_text(text.replace('"the answer is 42\\n"', '"the answer is 43\\n"'))
    result = nbval(folder)
    assert result.returncode == 1 and "the answer is 43" in result.stdout


def test_an_edited_source_is_a_drift_and_a_touched_one_is_not(tmp_path, monkeypatch):
    source = tmp_path / "01_small.py"
    jupytext.write(write(tmp_path / "01_small.ipynb"), source, fmt="py:percent")
    os.utime(source, (0, 0))
    assert notebooks.drift(source) is None
    source.write_text(source.read_text().replace("the answer", "an answer"))
    assert "cell 0" in notebooks.drift(source)
    source.write_text(source.read_text() + "\n# %%\n1\n")
    assert "3 cells" in notebooks.drift(source)
    (tmp_path / "01_small.ipynb").unlink()
    assert "does not exist" in notebooks.drift(source)


def test_cells_run_out_of_order_are_found(tmp_path):
    notebook = write(tmp_path / "01_small.ipynb")
    notebook.cells[0].execution_count = 3
    nbformat.write(notebook, tmp_path / "01_small.ipynb")
    assert "[3, 2]" in notebooks.disorder(tmp_path / "01_small.py")


def test_a_cell_that_swallows_the_next_is_found(tmp_path):
    """jupytext takes a fence with a code span in its title for no fence, and the closing one for an opening one."""
    source = tmp_path / "01_small.py"
    source.write_text("# %% [markdown]\n# ````{warning} About `x`\n# text\n# ````\n\n# %%\n1\n\n# %% [markdown]\n# ````{note} b\n# ````\n")
    with pytest.raises(ValueError, match="swallows"):
        notebooks.written(source)

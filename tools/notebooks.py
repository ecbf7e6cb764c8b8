"""The notebooks: pairs of a reviewed source NN_name.py and an executed NN_name.ipynb.

    python -m tools.notebooks           execute every notebook whose source has changed since it was executed
    python -m tools.notebooks --all     execute every notebook

The source is never written. Outputs, cell numbers and the alternative text of figures go into the .ipynb.
"""

import argparse
import copy
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
CELL_SECONDS = 300


def sources() -> list[Path]:
    """The chapters' sources, in the book's order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))


def written(source: Path) -> list[tuple[str, str, list[str]]]:
    """What an author writes of a notebook, .py or .ipynb: type, text and tags of each cell."""
    cells = jupytext.read(source).cells
    for cell in cells:
        # A code span in the title of a directive makes jupytext read on to the next fence.
        if cell.cell_type == "markdown" and "\n%%" in cell.source:
            raise ValueError(f"{source.name}: a cell swallows those after it: {cell.source[:60]!r}; is there a ` in the title of a directive?")
    return [(cell.cell_type, cell.source.strip(), sorted(cell.metadata.get("tags", []))) for cell in cells]


def drift(source: Path) -> str | None:
    """What differs between a source and its notebook, in words; None where nothing does."""
    notebook = source.with_suffix(".ipynb")
    if not notebook.exists():
        return f"{notebook.name} does not exist"
    theirs, ours = written(notebook), written(source)
    if len(theirs) != len(ours):
        return f"{source.name} has {len(ours)} cells and {notebook.name} {len(theirs)}"
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            return f"cell {number} of {source.name} is not cell {number} of {notebook.name}: {a[1][:60]!r} against {b[1][:60]!r}"
    return None


def disorder(source: Path) -> str | None:
    """Whether the executed notebook is not the record of one clean run from top to bottom."""
    code = [cell for cell in nbformat.read(source.with_suffix(".ipynb"), as_version=4).cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        return f"the cells of {source.with_suffix('.ipynb').name} were executed in the order {counts}"
    return None


def execute(source: Path) -> nbformat.NotebookNode:
    """Run a source from top to bottom and return it with its outputs, without what changes from run to run."""
    written(source)  # complains about what jupytext would misread
    notebook = jupytext.read(source)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    NotebookClient(notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(NOTEBOOKS)}}, record_timing=False).execute()
    notebook.metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = _joined_streams(cell.outputs)
            _hand_alternative_text_to_the_book(cell)
    return notebook


def _joined_streams(outputs: list) -> list:
    """Neighbouring pieces of one stream as one: where it is cut depends on the machine's speed."""
    joined = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last and output.output_type == "stream" == last.output_type and output.name == last.name:
            last.text += output.text
        else:
            joined.append(copy.deepcopy(output))
    return joined


def _hand_alternative_text_to_the_book(cell) -> None:
    """A notebook keeps the text with the output, where Jupyter reads it; the book's builder reads it from the cell."""
    for output in cell.outputs:
        alt = output.get("metadata", {}).get("image/png", {}).get("alt")
        if alt:
            cell.metadata["mystnb"] = {"image": {"alt": alt}}


def main() -> int:
    """Execute what has changed and print the time of each."""
    parser = argparse.ArgumentParser(description="Execute the notebooks' sources and write their outputs.")
    parser.add_argument("--all", action="store_true", help="also those whose source has not changed")
    parser.add_argument("names", nargs="*", help="only the notebooks whose name begins like this, for example 03")
    arguments = parser.parse_args()
    for source in sources():
        if arguments.names and not any(source.name.startswith(name) for name in arguments.names):
            continue
        if not arguments.all and not drift(source) and not disorder(source):
            print(f"{source.stem}: unchanged")
            continue
        begin = time.perf_counter()
        executed = execute(source)
        nbformat.write(executed, source.with_suffix(".ipynb"))
        print(f"{source.stem}: {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

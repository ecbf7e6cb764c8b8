import json
import shutil
from pathlib import Path

import jupytext
import pytest

from tools import notebooks
from tools.publish import NotPublishable, publish

ROOT = Path(__file__).resolve().parent.parent
ADDRESS, COMMIT = "https://github.com/owner/name", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkout(tmp_path):
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_address_stands_in_one_place_and_is_not_known():
    assert 'url: ""' in (ROOT / "_config.yml").read_text()


def test_the_address_is_written_everywhere_and_the_pairs_still_agree(checkout):
    publish(checkout, ADDRESS, COMMIT)
    config = (checkout / "_config.yml").read_text()
    assert f'url: "{ADDRESS}"' in config and "branch: published" in config
    for source in sorted((checkout / "notebooks").glob("*.py")):
        assert notebooks.drift(source) is None
        json.loads(source.with_suffix(".ipynb").read_text())
        setup = [cell.source for cell in jupytext.read(source).cells if "setup" in cell.metadata.get("tags", [])]
        assert f'REPOSITORY = "{ADDRESS}@{COMMIT}"' in setup[0]


@pytest.mark.parametrize(
    ("address", "commit", "message"),
    [
        ("http://github.com/owner/name", COMMIT, "address like"),
        ("https://example.org/owner/name", COMMIT, "address like"),
        (ADDRESS + "/extra", COMMIT, "address like"),
        (ADDRESS + '"; import os', COMMIT, "address like"),
        (ADDRESS, "main", "40 hexadecimal"),
    ],
)
def test_a_wrong_address_changes_nothing(checkout, address, commit, message):
    before = contents(checkout)
    with pytest.raises(NotPublishable, match=message):
        publish(checkout, address, commit)
    assert contents(checkout) == before


def test_publishing_twice_is_refused_and_changes_nothing(checkout):
    publish(checkout, ADDRESS, COMMIT)
    before = contents(checkout)
    with pytest.raises(NotPublishable, match="published already"):
        publish(checkout, ADDRESS, COMMIT)
    assert contents(checkout) == before

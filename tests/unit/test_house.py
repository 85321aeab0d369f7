"""The house itself: rules that no linter of ours keeps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTER = ("operator", "daemon", "kernels", "crds")


@pytest.mark.parametrize("folder", OUTER)
def test_outer_folders_are_not_packages(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists(), "an __init__.py here would shadow or break imports"


def test_pythons_own_operator_module_is_the_one_imported() -> None:
    program = "import operator; print(operator.__file__)"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not Path(found.strip()).is_relative_to(ROOT)


def test_no_tests_folder_is_named_operator_or_is_a_package() -> None:
    assert not list((ROOT / "tests").rglob("operator"))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_lock_files_hold_hashes_and_no_addresses() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    assert locks
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text, lock.name
        for pinned in re.findall(r"^[a-z0-9][^\n]*", text, re.MULTILINE):
            assert "==" in pinned, f"{lock.name}: {pinned}"
        assert text.count("--hash=sha256:") >= len(re.findall(r"^[a-z0-9][^\n]*==", text, re.MULTILINE))

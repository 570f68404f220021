"""The embedded corpus is there on every machine, holds several domains, and repeats itself exactly."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from thinwire.data.documents import ReadOptions
from thinwire.data.python_modules import split_module
from thinwire.data.python_text import Domain, InstalledFile, PythonSource, _select, _walk

MODULE = '''"""The module.

Second line.
"""
import os


class Kept:
    """A class."""

    limit = """not a docstring"""

    async def run(self, x):
        r"""Runs.

            Indented.
        """
        if x:
            def inner():
                "Inside."
                return 1
        return "value"


def one(): "on the line"


def none():
    return os
'''


def test_a_module_becomes_code_and_documentation() -> None:
    parts = split_module(MODULE, name="pkg.module")
    assert parts is not None
    assert parts.documentation == (
        "pkg.module\n\nThe module.\n\nSecond line.\n\nclass Kept:\n\nA class.\n\nasync def run(self, x):\n\n"
        'Runs.\n\nIndented.\n\ndef inner():\n\nInside.\n\ndef one(): "on the line"\n\non the line\n'
    )
    assert 'limit = """not a docstring"""' in parts.code
    assert 'def one(): "on the line"' in parts.code
    for gone in ("The module", "Second line", "A class", "Runs", "Inside"):
        assert gone not in parts.code
    assert len(parts.code.splitlines()) == len(MODULE.splitlines()) - 10


def test_what_is_not_python_is_passed_over() -> None:
    assert split_module("def broken(:\n", name="m") is None
    assert split_module("x = 1\0", name="m") is None


def test_form_feeds_do_not_shift_lines() -> None:
    text = 'x = 1\n\x0c\ndef f():\n    """Gone."""\n    y = "\x1c"\n    return 2\n'
    parts = split_module(text, name="m")
    assert parts is not None
    assert "Gone" not in parts.code
    assert "return 2" in parts.code
    ast.parse(parts.code)


def test_every_python_has_several_domains() -> None:
    source = PythonSource()
    documents = source.documents(ReadOptions())
    counted: Counter[str] = Counter()
    for number, document in enumerate(documents):
        counted[document.domain] += len(document.payload)
        assert len(document.payload) >= 256
        if number >= 700:
            break
    assert counted["python-docs"] > 200_000
    assert counted["python-source"] > 1_000_000


def test_inputs_repeat_and_name_each_domain() -> None:
    first, again = PythonSource().inputs(), PythonSource().inputs()
    assert first == again
    assert [record.path.split(":")[1] for record in first] == [
        "python-source",
        "python-docs",
        "package-source",
        "package-reference",
        "package-docs",
        "licences",
        "c-headers",
    ]


@pytest.mark.parametrize(("max_bytes", "max_package_bytes"), [(1000, 1000), (1000, 300), (250, 1000)])
def test_limits_hold_and_the_choice_does_not_depend_on_order(
    tmp_path_factory: pytest.TempPathFactory, max_bytes: int, max_package_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    files = [InstalledFile(folder / f"{n}.py", f"package{n % 3}/{n}.py", 100) for n in range(40)]
    files.append(InstalledFile(folder / "n.txt", "package0/n.txt", 1))
    domain = Domain((".py",), max_bytes, max_package_bytes)
    chosen = _select(files, domain)
    assert chosen == _select(files[::-1], domain)
    assert [file.label for file in chosen] == sorted(file.label for file in chosen)
    assert len(chosen) == min(max_bytes // 100, 3 * (max_package_bytes // 100))
    assert all(file.label.endswith(".py") for file in chosen)


def test_this_packages_own_text_is_no_part_of_the_corpus(tmp_path: Path) -> None:
    """Its README would make the corpus change with every version of the package."""
    for name in ("thinwire/a.py", "thinwire-0.1.0.dist-info/METADATA", "other-1.dist-info/METADATA", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words " * 100)
    assert [file.label for file in _walk(tmp_path)] == ["other-1.dist-info/METADATA"]

"""How does a person start this program?  What a printed command must begin with, so that it can be pasted."""

import shutil
import sys
from pathlib import Path


def program() -> list[str]:
    """How a person starts this program: where the shell does not find its name, by the script's path or as a module."""
    script = sys.argv[0]
    if not shutil.which("thinwire"):
        if Path(script).name == "thinwire":
            return [script]
        if Path(script).parts[-2:] == ("thinwire", "__main__.py"):
            return ["python", "-m", "thinwire"]
    return ["thinwire"]

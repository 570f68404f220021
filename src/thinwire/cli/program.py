"""How does a person start this program?  What a printed command must begin with, so that it can be pasted."""

import shutil
import sys
from pathlib import Path


def program() -> str:
    """How a person starts this program: by the script's path where the shell does not find it by name."""
    script = sys.argv[0]
    return script if Path(script).name == "thinwire" and not shutil.which("thinwire") else "thinwire"

"""``python -m thinwire VERB ...`` is ``thinwire VERB ...``."""

from thinwire.cli.main import run

if __name__ == "__main__":
    run()

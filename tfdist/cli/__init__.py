"""The command `tfdist`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; the entry point of the script `tfdist`."""
    try:
        from tfdist.cli.app import app
    except ImportError as error:
        sys.exit(f"The command line needs typer and rich: pip install 'tfdist[cli]' ({error}).")
    app()

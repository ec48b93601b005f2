"""The commands by name."""

from __future__ import annotations

import typer

from tfdist.cli.plan import plan

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tools for distributed training with tfdist.")


@app.callback()
def _commands() -> None:
    """Makes typer ask for a command by name, also while there is only one."""


app.command()(plan)

"""The commands by name."""

from __future__ import annotations

import typer

from tfdist.cli.check import check
from tfdist.cli.plan import plan
from tfdist.cli.run import run

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tools for distributed training with tfdist.")
app.command()(check)
# What follows the script is the script's; `-m module` is taken as Python takes it.
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(run)
app.command()(plan)

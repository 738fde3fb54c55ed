"""The command line. A verb is a module of this package with a function of its name; `_` in front hides a helper.

Adding a verb is adding its module: it is found, its docstring is its help, and errors reach the user as one line on
stderr. What a module imports at its top is paid by every verb, `--help` included: heavy packages are imported inside
the function.
"""

import importlib
import pkgutil

import typer

from isentrope.cli._errors import in_one_line


def _app() -> typer.Typer:
    app = typer.Typer(
        name="isentrope",
        help="Entropy control for reinforcement-learning post-training of language models.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)  # keeps the verb's name in the command while there is a single verb
    for verb in verbs():
        function = getattr(importlib.import_module(f"{__name__}.{verb}"), verb)
        app.command(verb.replace("_", "-"))(in_one_line(function))
    return app


def verbs() -> list[str]:
    """The names of the modules that are verbs, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


app = _app()


def main() -> None:
    """Entry point of the command `isentrope`."""
    app()

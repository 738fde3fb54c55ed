"""The command `isentrope`, which `python -m isentrope` is too."""

import sys


def main() -> None:
    """Runs the command line, or says in one line what installs it: the library alone needs torch and nothing else."""
    try:
        from isentrope import cli
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("isentrope"):
            raise
        sys.exit(f"isentrope: the command line needs {error.name}, which is missing: pip install 'isentrope[trl]'")
    cli.main()


if __name__ == "__main__":
    main()

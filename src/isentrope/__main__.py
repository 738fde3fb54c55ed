"""`python -m isentrope` is the command `isentrope`."""

from isentrope.cli import main

if __name__ == "__main__":
    main()

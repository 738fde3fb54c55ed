"""Engines run an objective inside a host: they translate columns, totals and state, and hold no maths.

Each module imports its host itself, so `import isentrope` needs torch alone.
"""

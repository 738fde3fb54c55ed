"""The script of a worker process that reads mathematics: `math_worker.py SECONDS MEMORY`.

It imports nothing of this package. One JSON line in, one out:
{"value": latex} -> {"exact": "3/4" or null, "digits": [text, ...], "symbols": [name, ...]}: `value`
{"gold": latex, "candidate": latex} -> {"equal": bool}: math-verify's own verdict
Each may be answered with {"error": "syntax" | "memory" | "undefined" | "failed"}. A request that takes more than
SECONDS of CPU time ends the process by SIGPROF: no Python code has to run for that, so nothing can hold it up. MEMORY
is the limit of the address space in bytes.
"""

import json
import os
import resource
import signal
import sys
from typing import Any

POINTS = 3  # where expressions with variables are compared; the last has negative values
DIGITS = 40
WORKING_DIGITS = 60
LARGEST_EXACT = 10**1000  # Python converts no integer of more than 4300 digits to text
TINY = "1e-42"  # smaller real or imaginary parts, absolute and relative, are rounding


def value(latex: str) -> dict[str, Any]:
    """What an expression is worth: exactly if it is rational, and to 40 digits at three fixed points.

    A constant has the same digits at all points. i and e are the constants; f(x) is a variable like x. Floats do not
    occur: the caller writes decimals as fractions.
    """
    expression = _parse(latex)
    if not isinstance(expression, sympy.Expr):
        return {"error": "syntax"}
    expression = expression.subs(sympy.Symbol("i"), sympy.I).doit()
    unknown = sorted(expression.atoms(AppliedUndef), key=str)
    expression = expression.xreplace({f: sympy.Symbol(f"value of {f}") for f in unknown})
    if expression.is_Rational and max(map(abs, (expression.p, expression.q))) < LARGEST_EXACT:
        return {"exact": str(expression), "digits": [], "symbols": []}
    symbols = sorted(expression.free_symbols, key=str)
    if expression.has(sympy.nan, sympy.zoo):
        return {"error": "undefined"}
    points = range(POINTS) if symbols else range(1)
    digits = [_digits(expression.subs({x: _point(str(x), k) for x in symbols})) for k in points]
    return {"exact": None, "digits": digits, "symbols": [str(x) for x in symbols]}


def _parse(latex: str) -> Any:
    if latex in ("\\infty", "-\\infty"):
        raise SyntaxError("no number")
    try:
        return latex2sympy(latex, is_real=None, normalization_config=None, conversion_config=CONVERSION)
    except MemoryError:
        raise
    except Exception as error:  # the parser raises bare Exceptions
        raise SyntaxError(str(error)) from error


def _point(name: str, k: int) -> Any:
    """A rational number that depends on nothing but the variable's name and k; it is negative for the last k."""
    seed = int.from_bytes(hashlib.sha256(f"{name}|{k}".encode()).digest()[:4], "big")
    number = sympy.Rational(seed % 9973 + 5000, 9973)
    return -number if k == POINTS - 1 else number


def _digits(expression: Any) -> str:
    number = expression.evalf(WORKING_DIGITS, maxn=400)
    real, imaginary = number.as_real_imag()
    if not (real.is_Float or real.is_Rational) or not (imaginary.is_Float or imaginary.is_Rational):
        return "?"
    floor = sympy.Float(TINY, WORKING_DIGITS) * max(1, abs(real), abs(imaginary))
    parts = ["0" if abs(part) < floor else str(sympy.Float(part, DIGITS)) for part in (real, imaginary)]
    return parts[0] if parts[1] == "0" else f"{parts[0]}+{parts[1]}i"


def agree(gold: str, candidate: str) -> dict[str, Any]:
    """math-verify's verdict on two answers, for forms that this package does not know."""
    found = [math_verify.parse(f"${text}$", parsing_timeout=None) for text in (gold, candidate)]
    return {"equal": bool(all(found) and math_verify.verify(*found, timeout_seconds=None))}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return value(request["value"]) if "value" in request else agree(request["gold"], request["candidate"])
    except MemoryError:
        return {"error": "memory"}
    except (SyntaxError, RecursionError):
        return {"error": "syntax"}
    except Exception as error:
        return {"error": "failed", "detail": f"{type(error).__name__}: {error}"[:200]}


def serve(seconds: float, replies: Any) -> None:
    """Answer requests until the other side closes the pipe."""
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = answer(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever a library prints
    try:
        import hashlib

        import math_verify
        import sympy
        from latex2sympy2_extended import latex2sympy
        from latex2sympy2_extended.latex2sympy2 import ConversionConfig
        from sympy.core.function import AppliedUndef

        CONVERSION = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
        memory = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except Exception as error:
        replies.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        sys.exit(1)
    replies.write(json.dumps({"ready": True}) + "\n")
    replies.flush()
    serve(float(sys.argv[1]), replies)

"""Makes the runs, the numbers and the pictures of docs/tutorial.md: python docs/make_tutorial.py

The `isentrope train` commands are read from the page and run as they stand there, in the current folder; a run whose
folder has a summary is taken as it is. Prints the page's tables; writes docs/pictures/*.png. The picture of the report
needs Chromium and is left as it is without one.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from isentrope import record
from isentrope.diagnostics import QUADRANTS
from isentrope.record import RunFolder

PAGE = Path(__file__).with_name("tutorial.md")
PICTURES = PAGE.parent / "pictures"
BATCHES = 4  # rollout batches that a point of the reward's curve averages
COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def train_commands(page: Path = PAGE) -> list[list[str]]:
    """The words of every `isentrope train` command of the page, without the program's name.

    >>> [words[0] for words in train_commands()]
    ['train', 'train']
    """
    text = page.read_text("utf-8").replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in re.findall(r"^\$ isentrope (train .*)$", text, re.MULTILINE)]


def folder_of(words: list[str]) -> RunFolder:
    return RunFolder(Path(words[words.index("--out") + 1]))


def isentrope(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "isentrope", *words], check=True)


def draw(path: Path, panels: list[tuple[str, list[tuple[str, tuple[list[int], list[float]]]]]]) -> None:
    """One panel for each (label of the y axis, curves), side by side; each curve is (name, (steps, values))."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained", dpi=100)
    for axis, (label, curves) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for colour, (name, (steps, values)) in zip(COLOURS, curves, strict=False):
            axis.plot(steps, values, color=colour, linewidth=1.4, label=name)
        axis.set(xlabel="optimizer step", ylabel=label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    with record.replacing(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))


def smooth(curve: tuple[list[int], list[float]], width: int) -> tuple[list[int], list[float]]:
    """The mean of each point and the `width - 1` before it.

    >>> smooth(([1, 2, 3], [0.0, 2.0, 4.0]), 2)
    ([1, 2, 3], [0.0, 1.0, 3.0])
    """
    steps, values = curve
    return steps, [fmean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def draw_curves(runs: dict[str, list[dict[str, Any]]]) -> None:
    rewards = [(name, smooth(record.series(lines, "reward"), BATCHES)) for name, lines in runs.items()]
    entropies = [(name, record.series(lines, "entropy")) for name, lines in runs.items()]
    draw(PICTURES / "curves.png", [("reward of the rollouts", rewards), ("entropy, nats", entropies)])


def draw_quadrants(runs: dict[str, list[dict[str, Any]]]) -> None:
    panels = []
    for name, lines in runs.items():
        series = [(q, smooth(record.series(lines, f"diagnostics/change/{q}"), BATCHES)) for q in QUADRANTS]
        panels.append((f"{name}: predicted entropy change", series))
    draw(PICTURES / "quadrants.png", panels)


def draw_report(folders: list[RunFolder]) -> None:
    """A picture of the top of the report on the runs, where there is a browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("no Chromium here: report.png stays as it is", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch:
        page, picture = Path(scratch) / "report.html", Path(scratch) / "report.png"
        isentrope("report", *(str(folder.path) for folder in folders), "-o", str(page))
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,640")
        where = (f"--user-data-dir={scratch}/profile", f"--screenshot={picture}", page.as_uri())
        subprocess.run([browser, *flags, *where], check=True, stderr=subprocess.DEVNULL, timeout=120)
        _fewer_colours(picture, PICTURES / "report.png")


def _fewer_colours(source: Path, target: Path) -> None:
    """A page has few colours, and a palette makes the picture a third as large."""
    from PIL import Image

    with Image.open(source) as image, record.replacing(target) as temporary:
        image.convert("RGB").quantize(64).save(temporary, format="PNG", optimize=True)


def print_tables(runs: dict[str, tuple[RunFolder, list[dict[str, Any]]]]) -> None:
    """What the page's tables hold: the held-out problems, and who moved the entropy."""
    for name, (folder, lines) in runs.items():
        for when in ("before", "after"):
            (found,) = record.read_json(folder.evaluation(when))
            print(
                f"{name} {when}: pass@1 {found['pass_at']['1']:.3f}, pass@8 {found['pass_at']['8']:.3f},"
                f" distinct {found['distinct_answers']:.2f}, distinct right {found['distinct_right']:.2f},"
                f" entropy {found['entropy']:.3f}"
            )
        shares = {q: record.series(lines, f"diagnostics/change_share/{q}")[1] for q in QUADRANTS}
        later = {q: fmean(values[len(values) // 2 :]) for q, values in shares.items() if values}
        print(f"{name} shares, later half: " + ", ".join(f"{q} {value:+.1%}" for q, value in later.items()))


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    found = {}
    for words in train_commands():
        folder = folder_of(words)
        if not folder.summary.is_file():
            isentrope(*words)
        found[folder.path.name] = (folder, record.read_metrics(folder.metrics))
    runs = {name: lines for name, (_, lines) in found.items()}
    draw_curves(runs)
    draw_quadrants(runs)
    draw_report([folder for folder, _ in found.values()])
    print_tables(found)


if __name__ == "__main__":
    main()

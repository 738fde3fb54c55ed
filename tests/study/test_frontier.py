"""The search beyond the papers: equal tuning, seeds kept apart, choices by the rule, a page that is its results."""

from pathlib import Path

import pytest

from isentrope import presets, recipe, record
from isentrope.cli import _comparison_run
from isentrope.errors import IsentropeError
from isentrope.study import beyond, frontier
from isentrope.study.frontier import ENTRANTS, FRESH, TUNING, WORLDS, Setting
from isentrope.study.runs import Condition, Result, results

DOCS = Path(__file__).parents[2] / "docs"
KEPT = DOCS / "study" / "frontier"
SMALL = {"trainer.problems": 32, "trainer.prompts": 8, "evaluation.problems": 4}


def result(one: float, many: float, kept: float = 0.5, noise: float = 0.0) -> Result:
    """Three seeds; `noise` moves pass@1 alone."""
    ones = [one - noise, one, one + noise]
    return Result({"pass_at_1": ones, "pass_at_k": [many] * 3, "entropy_kept": [kept] * 3}, {})


def scored(**entrants: Result) -> dict[str, Result]:
    found = {}
    for name, held in entrants.items():
        pairs = zip(held.figures["pass_at_1"], held.figures["pass_at_k"], strict=True)
        score = [(a + b) / 2 for a, b in pairs]
        found[name.replace("_plus_", " + ")] = Result({**held.figures, "score": score}, {})
    return found


def test_every_entrant_gets_the_same_tuning() -> None:
    assert {len(entrant.values) for entrant in ENTRANTS.values()} == {3}
    assert all(len(set(entrant.values)) == 3 for entrant in ENTRANTS.values())
    made = [ENTRANTS[s.entrant].make(s.value) for name in ENTRANTS for s in frontier.knob_settings(name)]
    assert all(made.count(objective) == 1 for objective in made)  # a knob that does nothing gives twins


def test_no_seed_is_both_tuned_and_judged_on() -> None:
    assert set(TUNING) & set(FRESH) == set()
    assert len(FRESH) >= 6


def test_published_entrants_hold_their_preset_at_one_value() -> None:
    unlike = {"grpo", "repo_d", "repo_r", "entropy_bonus"}  # an aggregation, a bound or a coefficient of another size
    for name in set(ENTRANTS) - unlike:
        if not ENTRANTS[name].ours:
            assert getattr(presets, name) in [ENTRANTS[name].make(x) for x in ENTRANTS[name].values], name


def test_the_preset_is_the_composition_that_tuning_chose() -> None:
    setting = frontier.settled(KEPT)["drift + bonus"]
    assert ENTRANTS[setting.entrant].make(setting.value) == presets.half_drift_bonus


def test_the_score_is_the_mean_of_both_passes_over_worlds() -> None:
    setting = Setting("grpo", 0.2)
    found = {f"bandits: {setting.name}": result(0.2, 0.6), f"chains: {setting.name}": result(0.4, 0.8)}
    assert frontier.score(found, setting, ("bandits", "chains")) == pytest.approx([0.5] * 3)
    assert frontier.pooled(found, setting, "pass_at_1", ("bandits", "chains")) == pytest.approx([0.3] * 3)
    over = frontier.over(found, {"grpo": setting}, ("bandits",))["grpo"]
    assert over.figures["score"] == pytest.approx([0.4] * 3)


def tuned(**best: Result) -> dict[str, Result]:
    """Results of tuning: an entrant's second value gives what is named, or little; its other values give nothing."""
    found = {}
    for name in ENTRANTS:
        for number, setting in enumerate(frontier.knob_settings(name)):
            held = best.get(name.replace(" + ", "_plus_"), result(0.1, 0.1)) if number == 1 else result(0.0, 0.0)
            found |= {f"{world}: {setting.name}": held for world in WORLDS}
    return found


def test_tuning_takes_the_value_of_the_best_mean_score() -> None:
    knobs = tuned(grpo=result(0.3, 0.5, noise=0.2))
    assert frontier.best_value(knobs, "grpo") == Setting("grpo", ENTRANTS["grpo"].values[1])
    first = frontier.knob_settings("grpo")[0]
    knobs |= {f"{world}: {first.name}": result(0.1, 0.71) for world in WORLDS}
    assert frontier.best_value(knobs, "grpo") == first


def test_finalists_are_the_best_compositions_the_published_frontier_and_the_references() -> None:
    knobs = tuned(
        dapo=result(0.5, 0.2),
        gepo=result(0.4, 0.3),
        adapo=result(0.35, 0.25),
        drift_plus_bonus=result(0.9, 0.9),
        qae_plus_bonus=result(0.8, 0.8),
        gepo_plus_ce_gppo=result(0.7, 0.7),
    )
    wanted = {*frontier.ALWAYS, "dapo", "gepo", "drift + bonus", "qae + bonus", "gepo + ce_gppo"}
    assert frontier.finalists(knobs) == [name for name in ENTRANTS if name in wanted]


def test_nothing_on_the_frontier_is_exceeded_in_both() -> None:
    found = {"a": result(0.9, 0.1), "b": result(0.5, 0.5), "c": result(0.4, 0.4), "d": result(0.1, 0.9)}
    assert frontier.frontier(found) == ["a", "b", "d"]
    assert frontier.frontier(found, among=["c", "d"]) == ["c", "d"]
    assert frontier.frontier({"a": result(0.9, 0.1, kept=0.1), "b": result(0.5, 0.9, kept=0.1)}, "entropy_kept") == [
        "a",
        "b",
    ]
    assert frontier.frontier({"a": result(0.9, 0.1, kept=0.2), "b": result(0.5, 0.9, kept=0.1)}, "entropy_kept") == [
        "a"
    ]


@pytest.mark.parametrize(("many", "noise", "earns"), [(0.9, 0.01, True), (0.9, 0.4, False), (0.1, 0.01, False)])
def test_a_composition_earns_a_preset_by_whole_intervals_over_every_rival(
    many: float, noise: float, earns: bool
) -> None:
    """Rivals: gepo is exceeded by grpo in both, so it is none; dapo is one by its pass@16."""
    found = scored(
        grpo=result(0.6, 0.6),
        gepo=result(0.5, 0.5),
        dapo=result(0.3, 0.7),
        gepo_plus_ce_gppo=result(0.1, 0.1),
        drift_plus_bonus=result(0.7, many, noise=noise),
    )
    assert frontier.rivals(found) == ["grpo", "dapo"]
    assert frontier.leader(found) == "drift + bonus"
    assert frontier.earned(found, "drift + bonus") == earns


def test_a_look_at_a_run_has_its_figures() -> None:
    figures, _ = frontier.look(Condition(presets.grpo, "tabular", SMALL), seed=0, steps=32)
    assert figures["entropy_kept"] == figures["entropy_end"] / figures["entropy_start"]
    assert 0 < figures["pass_at_1"] < figures["pass_at_k"] < 1
    assert figures["entropy_kept"] != 1
    assert 0 < figures["mean_reward"] < 1


def test_the_results_of_the_repository_are_those_of_the_search() -> None:
    """An entrant that was changed without running it again has another mark."""
    every = [setting for name in ENTRANTS for setting in frontier.knob_settings(name)]
    wanted = {
        "knobs": (frontier.conditions(every), TUNING),
        "fresh": (frontier.conditions([*frontier.settled(KEPT).values()]), FRESH),
    }
    for name, (conditions, seeds) in wanted.items():
        kept = record.read_json(KEPT / f"{name}.json")
        marks = {label: found["mark"] for label, found in kept["conditions"].items()}
        end = f"{frontier.STEPS}/{','.join(map(str, seeds))}"
        assert marks == {label: f"{condition.mark}/{end}" for label, condition in conditions.items()}, name


@pytest.mark.slow
def test_a_run_gives_the_kept_result_again() -> None:
    """To four digits: another machine rounds differently in the last bits."""
    setting, fresh = frontier.settled(KEPT)["drift + bonus"], results(KEPT / "fresh.json")
    for label, condition in setting.conditions().items():
        figures, _ = frontier.look(condition, FRESH[0], frontier.STEPS)
        for figure, values in fresh[label].figures.items():
            assert figures[figure] == pytest.approx(values[0], rel=1e-4), (label, figure)


def test_the_page_and_its_pictures_are_those_of_the_kept_results(tmp_path: Path) -> None:
    folder = tmp_path / "study" / "frontier"
    folder.mkdir(parents=True)
    for file in KEPT.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    beyond.write(folder, tmp_path / "frontier.md")
    wrong = "run python -m isentrope.study.beyond"
    assert (tmp_path / "frontier.md").read_text() == (DOCS / "frontier.md").read_text(), wrong
    drawn = sorted(folder.glob("*.svg"))
    assert len(drawn) == 2
    assert all(file.read_text() == (KEPT / file.name).read_text() for file in drawn), wrong


def test_a_page_without_runs_of_a_language_model_says_how_to_make_them(tmp_path: Path) -> None:
    assert beyond.spoken(tmp_path) == {}
    assert "Not run" in beyond._language(tmp_path)


@pytest.mark.parametrize(
    ("mine", "common", "gap"),
    [([2, 0], "0, 2", ".250 ± .635"), ([2], "2", ".2")],  # .2 and .3: half their distance times Student's 12.71
)
def test_objectives_on_the_language_model_are_compared_on_the_seeds_they_share(
    mine: list[int], common: str, gap: str, tmp_path: Path
) -> None:
    def runs(seeds: list[int], first: float, step: float) -> dict[str, list[float]]:
        return {"seeds": seeds} | {f: [first + step * s for s in seeds] for f in beyond.SPOKEN}

    record.write_json(
        tmp_path / "language.json", {"grpo": runs([0, 1, 2], 0.1, 0.1), beyond.OURS: runs(mine, 0.4, 0.05)}
    )
    written = beyond._language(tmp_path)
    assert f"| grpo | {common} | {gap} |" in written
    assert "| grpo | 0, 1, 2 | .200 ± .248 |" in written
    assert ("A single seed" in written) == (len(mine) == 1)


def test_finished_runs_of_a_comparison_are_read_and_others_left_out(tmp_path: Path) -> None:
    made = recipe.load("tabular", overrides=SMALL | {"trainer.steps": 16, "evaluation.samples": 4})
    plan = _comparison_run.make(tmp_path / "runs", made, ["grpo", "gepo"], 1)
    _comparison_run.open_folder(plan)
    _comparison_run.execute(plan, lambda _: None)
    (tmp_path / "runs" / "grpo" / "seed-1").mkdir()
    found = beyond.language([tmp_path / "runs"])
    assert found["grpo"]["seeds"] == found["gepo"]["seeds"] == [0]
    assert 0 < found["grpo"]["pass_at_1"][0] < found["grpo"]["pass_at_k"][0] < 1
    with pytest.raises(IsentropeError):
        beyond.language([tmp_path])

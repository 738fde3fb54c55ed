"""The rehearsal's rollout server: a completion depends on its request and the weights, on nothing else."""

import asyncio
import math
from importlib.resources import files

import pytest
import torch

pytest.importorskip("transformers")

from isentrope.engines.verl_laptop_server import InverseTransform, Request, Sampler, Server

pytestmark = pytest.mark.engine
EMBEDDED = str(files("isentrope") / "embedded")
PROMPTS = [[5, 6, 7], [20, 21, 22, 23, 24], [40]]


def _request(prompt, seed=0, **changes):
    return Request(
        **{"prompt": tuple(prompt), "max_tokens": 12, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": seed}
        | changes
    )


@pytest.fixture(scope="module")
def sampler():
    return Sampler(EMBEDDED)


def _scored(sampler, prompt, completion, temperature=1.0):
    """Log-probabilities of a completion's tokens by one pass over the whole sequence."""
    tokens = torch.tensor([[*prompt, *completion.token_ids]])
    logits = sampler.model(tokens).logits[0, len(prompt) - 1 : -1].double() / temperature
    return torch.log_softmax(logits, -1).gather(-1, tokens[0, len(prompt) :, None])[:, 0]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_one_pass_over_the_sequence(sampler, temperature):
    found = sampler.complete([_request(prompt, i, temperature=temperature) for i, prompt in enumerate(PROMPTS)])
    assert len({len(completion.token_ids) for completion in found} | {0}) > 1
    for prompt, completion in zip(PROMPTS, found, strict=True):
        expected = _scored(sampler, prompt, completion, temperature)
        torch.testing.assert_close(torch.tensor(completion.log_probs).double(), expected, rtol=0, atol=1e-4)


def test_a_completion_is_the_same_alone_and_in_any_batch(sampler):
    requests = [_request(prompt, seed) for prompt in PROMPTS for seed in range(4)]
    together = sampler.complete(requests)
    backwards = sampler.complete(requests[::-1])[::-1]
    alone = [sampler.complete([request])[0] for request in requests]
    assert [c.token_ids for c in together] == [c.token_ids for c in backwards] == [c.token_ids for c in alone]
    assert len({tuple(c.token_ids) for c in together}) > len(PROMPTS), "seeds draw different completions"


def test_temperature_zero_takes_the_most_likely_token(sampler):
    (found,) = sampler.complete([_request(PROMPTS[0], temperature=0.0)])
    tokens = torch.tensor([[*PROMPTS[0], *found.token_ids]])
    assert sampler.model(tokens).logits[0, len(PROMPTS[0]) - 1 : -1].argmax(-1).tolist() == found.token_ids


def test_a_completion_ends_with_its_first_end_token_or_at_its_own_limit(sampler):
    found = sampler.complete([_request(prompt, seed, max_tokens=40) for prompt in PROMPTS for seed in range(8)])
    ended = [c for c in found if c.token_ids[-1] in sampler.ends]
    assert ended, "some completion ends by itself"
    assert all(token not in sampler.ends for c in found for token in c.token_ids[:-1])
    short = sampler.complete([_request(PROMPTS[0], 0, max_tokens=2), _request(PROMPTS[0], 0, max_tokens=9)])
    assert len(short[0].token_ids) == 2
    assert short[1].token_ids[:2] == short[0].token_ids
    assert len(short[1].log_probs) == len(short[1].token_ids)


def test_top_k_and_top_p_leave_the_likely_tokens_and_their_renormalised_probabilities(sampler):
    (one,) = sampler.complete([_request(PROMPTS[0], 3, top_k=1)])
    assert one.log_probs == pytest.approx([0.0] * len(one.log_probs))
    (narrow,) = sampler.complete([_request(PROMPTS[0], 3, top_p=1e-6)])
    assert narrow.token_ids == one.token_ids


def test_draws_follow_the_distribution():
    # frequencies of 20,000 draws; the standard deviation of each is below 0.0036
    p = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
    draw = InverseTransform(range(20_000), greedy=False)
    chosen = draw(torch.zeros(1), p.log().expand(20_000, 5)).argmax(-1)
    share = torch.bincount(chosen, minlength=5) / 20_000
    torch.testing.assert_close(share, p, rtol=0, atol=0.015)
    assert share[1] == share[4] == 0, "what has no probability is never drawn"


def test_a_uniform_number_of_almost_one_draws_the_last_possible_token(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(math.nextafter(1.0, 0.0), dtype=torch.float64))
    draw = InverseTransform([0], greedy=False)
    scores = torch.tensor([[0.3, 0.3, 0.4, 0.0]]).log()
    assert draw(torch.zeros(1), scores).argmax(-1).tolist() == [2]


def test_weights_of_another_model_are_refused(sampler):
    with pytest.raises(RuntimeError, match="missing"):
        sampler.load({"nonsense": torch.zeros(1)})


# -- the server


def _server(**changes):
    return Server(
        **{"path": EMBEDDED, "dtype": "float32", "response_length": 8, "ignore_eos": False, "seed": 0} | changes
    )


def _ask(server, prompt, **params):
    return server.generate(prompt, {"temperature": 1.0, "top_p": 1.0, "top_k": -1, **params}, "id")


def test_requests_that_wait_are_answered_each_with_its_own_completion():
    async def main():
        server = _server()
        found = await asyncio.gather(*(_ask(server, prompt, seed=7) for prompt in PROMPTS))
        again = await _ask(server, PROMPTS[1], seed=7)
        hot = await _ask(server, PROMPTS[0], temperature=9.0, seed=7)
        ways = await asyncio.gather(
            _ask(server, PROMPTS[0], temperature=0.0), _ask(server, PROMPTS[0], temperature=9.0, seed=7)
        )
        return found, again, hot, ways

    found, again, hot, ways = asyncio.run(main())
    assert again.token_ids == found[1].token_ids
    assert ways[1].token_ids == hot.token_ids != ways[0].token_ids, "each in its own way of sampling"
    assert all(len(c.token_ids) <= 8 for c in found)


def test_new_weights_change_what_is_drawn_and_carry_their_step():
    async def main():
        server = _server()
        before = await _ask(server, PROMPTS[0], temperature=0.0)
        weights = {name: torch.zeros_like(w) for name, w in server._sampler.model.state_dict().items()}
        await server.load_weights(weights, 5)
        return before, await _ask(server, PROMPTS[0], temperature=0.0)

    before, after = asyncio.run(main())
    assert before.extra_fields["global_steps"] is None
    assert after.extra_fields["global_steps"] == 5
    assert after.log_probs == pytest.approx([-math.log(99)] * len(after.log_probs)), "zero weights: uniform"


def test_while_generation_is_held_back_requests_wait():
    async def main():
        server = _server()
        await server.abort_all_requests()
        waiting = asyncio.create_task(_ask(server, PROMPTS[0], seed=1))
        await asyncio.sleep(0.2)
        was_done = waiting.done()
        await server.resume_generation()
        return was_done, await asyncio.wait_for(waiting, 30)

    was_done, completion = asyncio.run(main())
    assert not was_done
    assert completion.token_ids


@pytest.mark.parametrize(
    ("params", "media", "message"),
    [
        ({"min_p": 0.1}, {}, "has no ['min_p']"),
        ({"repetition_penalty": 1.2}, {}, "has no ['repetition_penalty']"),
        ({}, {"image_data": ["x"]}, "samples text alone; found ['image_data']"),
    ],
)
def test_a_way_of_sampling_that_the_server_lacks_is_refused(params, media, message):
    async def main():
        await _server().generate(PROMPTS[0], params, "id", **media)

    with pytest.raises(ValueError) as caught:
        asyncio.run(main())
    assert message in str(caught.value)


def test_an_error_while_sampling_reaches_every_request_and_the_server_goes_on(monkeypatch):
    async def main():
        server = _server()
        complete = server._sampler.complete
        monkeypatch.setattr(server._sampler, "complete", lambda _: 1 / 0)
        broken = await asyncio.gather(*(_ask(server, p, seed=1) for p in PROMPTS), return_exceptions=True)
        monkeypatch.setattr(server._sampler, "complete", complete)
        return broken, await _ask(server, PROMPTS[0], seed=1)

    broken, healthy = asyncio.run(main())
    assert [type(error) for error in broken] == [ZeroDivisionError] * 3
    assert healthy.token_ids

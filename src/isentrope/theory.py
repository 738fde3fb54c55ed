"""How a step moves entropy: exact and first-order change for softmax policies, and the prediction from sampled tokens.

One state (or a batch of states: every function works along the last dimension): logits z, pi = softmax(z), H its
entropy in nats, L_a = log pi_a + H the centred log-probability (E_pi[L] = 0), A~ = A - E_pi[A]. Actions with z = -inf
have probability 0 and contribute 0 everywhere. A step is a change of logits.

A one-state example by hand: pi = (.6, .3, .1), A = (1, 0, -1).

>>> z, A = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log(), torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
>>> round(float(entropy(z)), 6), round(float(decorrelating_beta(z, A)), 6)
(0.897946, 1.272969)
>>> [round(g, 6) for g in entropy_gradient(z).tolist()]
[-0.232272, 0.091808, 0.140464]
"""

import torch
from torch import Tensor

from isentrope import masked


def log_probabilities(logits: Tensor) -> Tensor:
    """log softmax(z), in float32 or wider."""
    return torch.log_softmax(masked.upcast(logits), -1)


def expectation(x: Tensor, p: Tensor) -> Tensor:
    """E_p[x] along the last dimension; x does not matter where p is 0 (it may be infinite there)."""
    return (p * masked.fill(x, p > 0)).sum(-1)


def entropy(logits: Tensor) -> Tensor:
    """H = -sum_a pi_a log pi_a in nats; [..., V] -> [...].

    Exactly 0 for a policy with one possible action; the gradient is finite.
    """
    log_p = log_probabilities(logits)
    possible = log_p.detach() > -torch.inf
    log_p = masked.fill(log_p, possible)
    return -masked.fill(log_p.exp() * log_p, possible).sum(-1)


def centred_logp(logits: Tensor) -> Tensor:
    """L_a = log pi_a + H; [..., V] -> [..., V]. -inf for impossible actions."""
    return log_probabilities(logits) + entropy(logits)[..., None]


def squared_mass(logits: Tensor) -> Tensor:
    """S = sum_b pi_b^2 L_b; [..., V] -> [...]: what one sampled action's step subtracts from every logit's share."""
    p = log_probabilities(logits).exp()
    return expectation(p * masked.fill(centred_logp(logits), p > 0), p)


def entropy_gradient(logits: Tensor) -> Tensor:
    """dH/dz_a = -pi_a L_a; [..., V] -> [..., V]."""
    p = log_probabilities(logits).exp()
    return -p * masked.fill(centred_logp(logits), p > 0)


def policy_gradient_step(logits: Tensor, advantage: Tensor, eta: float) -> Tensor:
    """dz = eta pi A~: the expected policy-gradient step of size eta."""
    p = log_probabilities(logits).exp()
    return eta * p * (advantage - expectation(advantage, p)[..., None])


def natural_gradient_step(advantage: Tensor, eta: float) -> Tensor:
    """dz = eta A: the natural-gradient step of size eta."""
    return eta * advantage


def one_sample_step(logits: Tensor, advantage: Tensor, action: Tensor, eta: float) -> Tensor:
    """dz = eta A (e_a - pi): the policy-gradient step of one sampled action (its index [...], its advantage [...])."""
    p = log_probabilities(logits).exp()
    chosen = torch.zeros_like(p).scatter_(-1, action[..., None], 1.0)
    return eta * advantage[..., None] * (chosen - p)


def exact_change(logits: Tensor, step: Tensor) -> Tensor:
    """H(softmax(z + dz)) - H(softmax(z)) in nats; [...]."""
    logits = masked.upcast(logits)
    return entropy(logits + step) - entropy(logits)


def first_order_change(logits: Tensor, step: Tensor) -> Tensor:
    """sum_a dH/dz_a dz_a = -Cov_pi(log pi, dz) in nats; [...].

    For a policy-gradient step it is -eta sum_a pi_a^2 L_a A~_a, for a natural-gradient step -eta Cov_pi(log pi, A),
    for one sampled action -eta A (pi_a L_a - S). Its relative error against `exact_change` is O(eta).
    """
    return (entropy_gradient(logits) * step).sum(-1)


def decorrelating_beta(logits: Tensor, advantage: Tensor) -> Tensor:
    """beta* = E[pi L A~] / E[pi L^2]; [...]: with A - beta* L a policy-gradient step keeps entropy to first order.

    0 for a uniform or a deterministic policy, where L is 0 and no beta changes anything.
    """
    p = log_probabilities(logits).exp()
    centred = masked.fill(centred_logp(logits), p > 0)
    spread = advantage - expectation(advantage, p)[..., None]
    return masked.divide(expectation(p * centred * spread, p), expectation(p * centred.square(), p))


def predicted_change(
    weights: Tensor, mask: Tensor, logp: Tensor, entropy: Tensor, mass: Tensor | None = None
) -> Tensor:
    """First-order entropy change per unit step that each token brings: -w_t (p_t L_t - S_t), [B,T]; 0 if masked.

    weights: dJ/dlogp under any objective (`Objective.weights`), p_t = exp(logp), L_t = logp + entropy. mass: S_t =
    sum_b pi_b^2 L_b where the caller has it; None takes 0, an estimate that leaves out what the step does to the
    tokens not sampled (say so where it is shown). The sum over tokens is the batch's change at the sampled positions,
    as if their logits were independent parameters.

    >>> z = torch.tensor([[[0.6, 0.3, 0.1]]], dtype=torch.float64).log()
    >>> w, yes = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    >>> change = predicted_change(w, yes, z[..., 0], entropy(z), squared_mass(z))
    >>> step = one_sample_step(z, w, torch.zeros(1, 1, dtype=torch.int64), eta=1.0)
    >>> bool(torch.isclose(change, first_order_change(z, step)))
    True
    """
    logp = masked.fill(logp, mask)
    pull = logp.exp() * (logp + masked.fill(entropy, mask))
    pull = pull if mass is None else pull - masked.fill(mass, mask)
    return -masked.fill(weights, mask) * pull

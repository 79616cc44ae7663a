"""The asynchronous schemes as plain loops, in float64: a stack of layers x + tanh(A x + c), its backward written out.

A scheme is what stage k reads for micro-batch i: the version and look-ahead of F, those of B; and how many
micro-batches a Step takes the mean of.
"""

from dataclasses import dataclass, replace

import torch

from tests.executor.models import WIDTH

AREA = WIDTH * WIDTH

LR = 0.005
"""So low that momentum on gradients 14 steps old does not blow up: then rounding does not either."""


@dataclass
class State:
    """One version of a layer: weights (and those before), last gradient, the optimizer's moments, Adam's of XPipe."""

    w: torch.Tensor
    t: int = 0
    before: object = 0.0
    g: object = 0.0
    m: object = 0.0
    v: object = 0.0
    own_m: object = 0.0
    own_v: object = 0.0

    def after(self, g, **values):
        own_m, own_v = 0.9 * self.own_m + 0.1 * g, 0.999 * self.own_v + 0.001 * g**2
        return replace(self, t=self.t + 1, before=self.w, g=g, own_m=own_m, own_v=own_v, **values)


@dataclass
class Sgd:
    lr: float = LR
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    decay: float = 0.0

    def step(self, s, g):
        d = g + self.decay * s.w
        m = self.momentum * s.m + (1 - self.dampening) * d if s.t and self.momentum else d
        return s.after(g, w=s.w - self.lr * (d + self.momentum * m if self.nesterov else m), m=m)

    def delta(self, s, rule):
        if rule == "adam":
            return adams_direction(s.own_m, s.own_v, s.t, 0.9, 0.999, 1e-8)
        if rule == "code" and self.momentum:
            return self.momentum * s.m + (1 - self.dampening) * (s.g + self.decay * s.before)
        return s.m


@dataclass
class Adam:
    lr: float = LR
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0
    decoupled: float = 0.0

    def step(self, s, g):
        d = g + self.decay * s.w
        m, v = self.b1 * s.m + (1 - self.b1) * d, self.b2 * s.v + (1 - self.b2) * d**2
        direction = adams_direction(m, v, s.t + 1, self.b1, self.b2, self.eps)
        return s.after(g, w=s.w * (1 - self.lr * self.decoupled) - self.lr * direction, m=m, v=v)

    def delta(self, s, rule):
        return s.m if rule == "momentum" else adams_direction(s.m, s.v, s.t, self.b1, self.b2, self.eps)


OPTIMIZERS = {"sgd": Sgd(), "momentum": Sgd(momentum=0.9), "adam": Adam(), "adamw": Adam(decoupled=0.01)}


def adams_direction(m, v, t, b1, b2, eps):
    return m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)


def ahead(optimizer_at, s, steps, rule):
    """Return the weights of version `s`, predicted `steps` ahead; the optimizer of step t has the rate of that step."""
    if not steps or not s.t:
        return s.w
    if rule in ("zero", "constant"):
        for _ in range(steps):
            s = optimizer_at(s.t).step(s, torch.zeros_like(s.w) if rule == "zero" else s.g)
        return s.w
    optimizer = optimizer_at(s.t)
    return s.w - optimizer.lr * steps * optimizer.delta(s, rule)


def layer(w, x):
    return torch.tanh(x @ w[:AREA].view(WIDTH, WIDTH).T + w[AREA:])


def through(weights, x):
    for w in weights:
        x = x + layer(w, x)
    return x


def gradients(forward, backward, x, y, cuts=None):
    """Return the gradient of every layer: forward through one set of weights, backward through another.

    With `cuts`, whether a stage begins with each layer, the stages keep their inputs alone and rebuild the rest with
    the weights of the backward.
    """
    kept, rebuilt = [], None
    for number, w in enumerate(forward):
        if cuts:
            rebuilt = x if cuts[number] else rebuilt
            kept.append((rebuilt, layer(backward[number], rebuilt)))
            rebuilt = rebuilt + kept[-1][1]
            x = x + layer(w, x)
        else:
            kept.append((x, layer(w, x)))
            x = x + kept[-1][1]
    g = 2 * ((rebuilt if cuts else x) - y) / x.numel()
    layer_gradients = []
    for w, (x, t) in zip(reversed(backward), reversed(kept), strict=True):
        h = g * (1 - t * t)
        layer_gradients.append(torch.cat([(h.T @ x).flatten(), h.sum(0)]))
        g = g + h @ w[:AREA].view(WIDTH, WIDTH)
    return layer_gradients[::-1]


def train(
    weights, stage_of, scheme, optimizer, data, rule="optimizer", rebuilds=False, rate=None, period=1, losses=None
):
    """Return the weights of every layer after a run over `data`, (input, target) by micro-batch.

    The loss of each micro-batch is added to the list `losses`.
    With `rate`, the learning rate is multiplied by rate(k) in step k of the run, which has `period` micro-batches.
    """

    def optimizer_of(per_step):
        if rate is None:
            return lambda t: optimizer
        return lambda t: replace(optimizer, lr=optimizer.lr * rate(t * per_step // period))

    history = [[State(w)] for w in weights]
    sums = [0.0] * len(weights)
    cuts = [k != before for k, before in zip(stage_of, [None, *stage_of], strict=False)] if rebuilds else None
    for i, (x, y) in enumerate(data):
        read = [(versions, *scheme(k, i)) for versions, k in zip(history, stage_of, strict=True)]
        forward = [ahead(optimizer_of(n), versions[v], s, rule) for versions, v, s, _, _, n in read]
        backward = [ahead(optimizer_of(n), versions[v], s, rule) for versions, _, _, v, s, n in read]
        if losses is not None:
            losses.append(((through(forward, x) - y) ** 2).mean().item())
        for number, g in enumerate(gradients(forward, backward, x, y, cuts)):
            sums[number] = sums[number] + g
            per_step = read[number][-1]
            if (i + 1) % per_step == 0:
                last = history[number][-1]
                history[number].append(optimizer_of(per_step)(last.t).step(last, sums[number] / per_step))
                sums[number] = 0.0
    return [versions[-1].w for versions in history]


def scheme_of(name, d, num_microbatches, extra=0):
    """Return the scheme `name` on d ranks; 2BW and WPipe step after d micro-batches."""

    def scheme(k, i):
        w, t = d - 1 - k, i // d
        behind, twice, delayed = max(0, i - w), max(0, i - 2 * w), max(0, t - 1)
        turn = 2 if d > 2 and k == 0 else 1  # 1F1B-RR has two replicas of its first stage
        turned = max(0, i // turn - (d - 1 - (k + 1 if k and d > 2 else k)) // turn)
        return {
            "pipedream": (behind, 0, behind, 0, 1),
            "vanilla_1f1b": (behind, 0, i, 0, 1),
            "stale_weights": (twice, 0, i, 0, 1),
            "hybrid": (twice if i < (num_microbatches + 1) // 2 else i, 0, i, 0, 1),
            "spectrain": (behind, k // 2 + w, i, k // 2, 1),
            "xpipe": (behind, k // 2 + w, i, k // 2, 1),
            "pipeoptim": (behind, w + extra, i, 0, 1),
            "pipedream_2bw": (delayed if d > 1 else t, 0, delayed if d > 1 else t, 0, d),
            "wpipe": (delayed, 0, delayed, 0, d) if k < d else (t, 0, t, 0, d),
            "1f1b_rr": (turned, 0, turned, 0, turn),
        }[name]

    return scheme


SCHEMES = (
    "pipedream", "vanilla_1f1b", "stale_weights", "hybrid", "spectrain", "xpipe", "pipeoptim", "pipedream_2bw", "wpipe",
    "1f1b_rr",
)  # fmt: skip
RULES = {"spectrain": "momentum", "xpipe": "adam", "pipeoptim": "optimizer"}
CONSISTENT = ("pipedream", "pipedream_2bw", "wpipe", "1f1b_rr")


def at_least(count, name, d):
    """Return the least number of micro-batches from `count` on that `name` can run."""
    period = d if name in ("pipedream_2bw", "wpipe") else 2 if name == "1f1b_rr" else 1
    return -(-count // period) * period


def by_layer(parameters):
    """Put weight and bias of every layer into one vector."""
    tensors = [parameter.detach().flatten() for parameter in parameters]
    return [torch.cat(pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]

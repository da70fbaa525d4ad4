"""Slow fits of affine calibrators in numpy and scipy, written from the formulas alone."""

from itertools import pairwise

import numpy as np
from scipy.optimize import minimize

EXPERTS = ("cdc", "cms_ap", "cms_op")


def log_softmax(scores):
    shifted = scores - scores.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def order_of(logits, name):
    """Canonical class order of every voxel (n, C)."""
    count, num_classes = logits.shape
    order = np.tile(np.arange(num_classes), (count, 1))
    for voxel in range(count):
        if name == "cms_op":
            order[voxel] = np.argsort(-logits[voxel], kind="stable")
        elif name == "cms_ap":
            winner = int(np.argmax(logits[voxel]))
            order[voxel, 0], order[voxel, winner] = winner, 0
    return order


def cone(name, num_classes):
    """x = G z: the first score, then the gaps."""
    matrix = np.zeros((num_classes, num_classes))
    matrix[0, 0] = 1
    for row in range(1, num_classes):
        matrix[row, 0 if name == "cms_ap" else row - 1] += 1
        matrix[row, row] -= 1
    return matrix


def assemble(name, vector, num_classes):
    """[W | b] (C, C + 1) of one expert from its parameters, and which of them must not be negative."""
    c = num_classes
    matrix, bounded = np.zeros((c, c + 1)), np.zeros(len(vector), dtype=bool)
    if name == "ts":
        matrix[:, :c] = np.eye(c) * vector[0]
        bounded[:] = True
    elif name == "vs":
        matrix[:, :c], matrix[:, c] = np.diag(vector[:c]), vector[c:]
    elif name == "ms_c":
        free, total, bias = vector[: c * (c - 1)].reshape(c, c - 1), vector[c * (c - 1)], vector[c * (c - 1) + 1 :]
        matrix[:, : c - 1], matrix[:, c - 1], matrix[:, c] = free, total - free.sum(1), bias
    elif name in ("cms_ap", "cms_op"):
        inner, first = vector[: (c - 1) ** 2].reshape(c - 1, c - 1), vector[(c - 1) ** 2 : (c - 1) ** 2 + c]
        gaps, head = vector[-c:-1], vector[-1]
        prime = np.zeros((c, c))
        prime[0], prime[1:, 1:] = first, inner
        to_gaps = cone(name, c)
        matrix[:, :c] = np.linalg.inv(to_gaps) @ prime @ to_gaps
        matrix[:, c] = np.linalg.solve(to_gaps, np.concatenate([[head], gaps]))
        bounded[: (c - 1) ** 2] = bounded[-c:-1] = True
    else:
        matrix[:] = vector.reshape(c, c + 1)
    return matrix, bounded


def identity(name, c):
    """Parameters of one expert at the identity."""
    eye = np.eye(c)
    return {
        "ts": np.ones(1),
        "vs": np.concatenate([np.ones(c), np.zeros(c)]),
        "ms_c": np.concatenate([eye[:, :-1].ravel(), [1], np.zeros(c)]),
        "cms_ap": np.concatenate([np.eye(c - 1).ravel(), eye[0], np.zeros(c)]),
        "cms_op": np.concatenate([np.eye(c - 1).ravel(), eye[0], np.zeros(c)]),
    }.get(name, np.hstack([eye, np.zeros((c, 1))]).ravel())


class Problem:
    """Objective and gradient of a fit on logits (n, C) and labels (n,), with weights (n,) and a centre (P,).

    The penalty is the mean over experts, or their sum.
    """

    def __init__(self, name, logits, target, lam, mu, eps, weights=None, centre=None, reduction="mean"):
        self.name, self.c = name, logits.shape[1]
        self.lam, self.mu, self.eps = lam, mu, eps
        self.order = order_of(logits, name)
        features = log_softmax(logits) if name in ("dc", "cdc") else logits
        canonical = np.take_along_axis(features, self.order, 1)
        if name not in ("ms", "vs"):  # softmax cannot see the shift of the others; dc and cdc have none
            canonical = canonical - (0 if name in ("dc", "cdc") else logits.max(1, keepdims=True))
        self.features = np.hstack([canonical, np.ones((len(logits), 1))])
        self.position = np.argmax(self.order == target[:, None], axis=1)
        self.expert = logits.argmax(1) if name in EXPERTS else np.zeros(len(logits), dtype=int)
        self.experts = self.c if name in EXPERTS else 1
        self.start = identity(name, self.c)
        self.centre = self.start if centre is None else centre
        weights = np.ones(len(logits)) if weights is None else weights
        self.weights = weights / weights.sum()
        units = np.eye(len(self.start))
        self.linear = np.stack([assemble(name, unit, self.c)[0] for unit in units])  # (P, C, C + 1)
        self.bounded = assemble(name, self.start, self.c)[1]
        self.strength = np.full((self.c, self.c + 1), lam / (self.c * (self.c - 1)))
        self.strength[np.arange(self.c), np.arange(self.c)] = 0
        self.strength[:, self.c] = mu / self.c
        self.strength /= self.experts if reduction == "mean" else 1

    def value(self, flat, gradient=False):
        total, slopes = 0.0, []
        for number, vector in enumerate(flat.reshape(self.experts, -1)):
            own = self.expert == number
            matrix = np.tensordot(vector, self.linear, 1)
            log_probs = log_softmax(self.features[own] @ matrix.T)
            rows = np.arange(own.sum())
            total -= (log_probs[rows, self.position[own]] * self.weights[own]).sum()
            total += (self.strength * matrix**2).sum() + self.eps / 2 * ((vector - self.centre) ** 2).sum()
            residual = np.exp(log_probs)
            residual[rows, self.position[own]] -= 1
            slope = (residual * self.weights[own, None]).T @ self.features[own] + 2 * self.strength * matrix
            slopes.append(np.tensordot(self.linear, slope, 2) + self.eps * (vector - self.centre))
        return (total, np.concatenate(slopes)) if gradient else total

    def solve(self):
        """Minimum by L-BFGS-B, restarted until it no longer moves."""
        point = np.tile(self.start, self.experts)
        bounds = [(0, None) if b else (None, None) for b in self.bounded] * self.experts
        options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 50}
        for _ in range(4):
            result = minimize(
                self.value, point, args=(True,), jac=True, method="L-BFGS-B", bounds=bounds, options=options
            )
            point = result.x
        return result.fun


class SplineProblem:
    """Objective and gradient of gap splines on logits (n, C) and labels (n,), with weights (n,) and a centre."""

    def __init__(self, logits, target, knots, eps, weights=None, centre=1.0):
        self.eps, self.centre, self.c = eps, centre, logits.shape[1]
        weights = np.ones(len(logits)) if weights is None else weights
        self.target, self.expert, self.weights = target, logits.argmax(1), weights / weights.sum()
        edges = np.array([0.0, *knots, np.inf])
        gaps = logits.max(1, keepdims=True) - logits
        self.hinges = np.stack([np.clip(gaps, low, high) - low for low, high in pairwise(edges)])  # (K, n, C)

    def value(self, flat, gradient=False):
        total, slopes = 0.0, []
        for number, vector in enumerate(flat.reshape(self.c, -1)):
            own = self.expert == number
            hinges, rows = self.hinges[:, own], np.arange(own.sum())
            log_probs = log_softmax(-np.tensordot(vector, hinges, 1))
            total -= (log_probs[rows, self.target[own]] * self.weights[own]).sum()
            total += self.eps / 2 * ((vector - self.centre) ** 2).sum()
            residual = np.exp(log_probs)
            residual[rows, self.target[own]] -= 1
            data = -(hinges * (residual * self.weights[own, None])).sum((1, 2))
            slopes.append(data + self.eps * (vector - self.centre))
        return (total, np.concatenate(slopes)) if gradient else total

    def solve(self):
        """Minimum by L-BFGS-B, restarted until it no longer moves."""
        point, options = np.ones(self.c * len(self.hinges)), {"maxiter": 20000, "ftol": 1e-16, "gtol": 1e-10}
        for _ in range(4):
            result = minimize(
                *(self.value, point, (True,)),
                jac=True,
                method="L-BFGS-B",
                bounds=[(1e-3, 1e3)] * len(point),
                options=options,
            )
            point = result.x
        return result.fun


def parameters_of(name, calibrator):
    """A fitted calibrator's parameters in the order of this file, read from its state."""
    state = {key: value.detach().double().numpy() for key, value in calibrator.state_dict().items()}
    if name == "ts":
        return np.exp(-state["log_temperature"]).reshape(1)
    if name == "vs":
        return np.concatenate([state["scale"], state["bias"]])
    if name == "ms_c":
        return np.concatenate([state["free"].ravel(), [state["row_sum"]], state["bias"]])
    if name in ("cms_ap", "cms_op"):
        keys = ("inner", "first_row", "bias_gaps", "bias_first")
        return np.concatenate([np.concatenate([state[k][e].ravel() for k in keys]) for e in range(len(state["inner"]))])
    stacked = np.concatenate([state["weight"], state["bias"][..., None]], axis=-1)
    return stacked.ravel()


def mixture_weights(log_q, weights):
    """Weights (K,) of the mixture of log-probabilities (K, n) with the lowest NLL, by SLSQP."""
    shares, ratios = weights / weights.sum(), np.exp(log_q - log_q.max(axis=0))

    def objective(point):
        mass = np.maximum(point @ ratios, 1e-300)
        return -(shares @ np.log(mass)), -(ratios @ (shares / mass))

    best = minimize(
        objective,
        np.full(len(log_q), 1 / len(log_q)),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * len(log_q),
        constraints={"type": "eq", "fun": lambda point: point.sum() - 1},
        options={"maxiter": 500, "ftol": 1e-13},
    )
    return best.x / best.x.sum()

"""Slow features of voxels and cases, written from their definitions."""

import itertools

import numpy as np

RADII = (0, 1, 2, 4, 8, 16)


def softmax(scores):
    shifted = np.exp(scores - scores.max(0))
    return shifted / shifted.sum(0)


def entropy(probs):
    """Entropy over log C along the first axis."""
    terms = np.where(probs > 0, probs * np.log(np.where(probs > 0, probs, 1)), 0)
    return np.clip(-terms.sum(0) / np.log(len(probs)), 0, 1)


def box(values, place, radius):
    """The values within a chessboard distance of a place."""
    return values[tuple(slice(max(0, i - radius), i + radius + 1) for i in place)]


def over_boxes(values, radius, reduce):
    found = np.empty(values.shape)
    for place in itertools.product(*map(range, values.shape)):
        found[place] = reduce(box(values, place, radius))
    return found


def boundary(labels):
    edge = np.zeros(labels.shape, dtype=bool)
    for place in itertools.product(*map(range, labels.shape)):
        for axis, step in itertools.product(range(labels.ndim), (-1, 1)):
            other = list(place)
            other[axis] += step
            if 0 <= other[axis] < labels.shape[axis] and labels[tuple(other)] != labels[place]:
                edge[place] = True
    return edge


def disagreement(winner, members):
    leads = []
    for scores in members:
        own = np.take_along_axis(scores, winner[None], 0)[0]
        rest = scores.copy()
        np.put_along_axis(rest, winner[None], -np.inf, 0)
        leads.append(own - rest.max(0))
    deviation = np.std(leads, axis=0)
    return deviation / (1 + deviation)


def feature(name, pooled, members):
    """One feature of pooled scores ``(C, *S)`` and members' ``(M, C, *S)``: ``(*S)``, or a number of the case."""
    winner, doubt = pooled.argmax(0), entropy(softmax(pooled))
    if name == "entropy":
        return np.sqrt(doubt)
    if name.startswith("entropy_"):
        return np.sqrt(over_boxes(doubt, int(name[8:]) // 2, np.mean))
    if name == "gap":
        ranked = np.sort(pooled, axis=0)
        return (ranked[-1] - ranked[-2]) / (4 + ranked[-1] - ranked[-2])
    if name.startswith(("winner_", "rival_")):
        which, size = name.split("_")
        means = np.array([over_boxes(probs, int(size) // 2, np.mean) for probs in softmax(pooled)])
        label = np.argsort(-pooled, axis=0, kind="stable")[0 if which == "winner" else 1]
        return np.take_along_axis(means, label[None], 0)[0]
    if name == "boundary":
        edge = boundary(winner)
        return np.mean([over_boxes(edge, radius, np.any) for radius in RADII], axis=0)
    if name == "disagreement":
        return disagreement(winner, members)
    if name == "votes":
        return np.mean([scores.argmax(0) != winner for scores in members], axis=0)
    if name == "mutual_information":
        probs = [softmax(scores) for scores in members]
        shared = np.maximum(entropy(np.mean(probs, axis=0)) - np.mean([entropy(p) for p in probs], axis=0), 0)
        return np.sqrt(shared + 1e-3) - np.sqrt(1e-3)
    if name == "case_entropy":
        return np.sqrt(doubt.mean())
    if name == "case_classes":
        return entropy(np.array([(winner == label).mean() for label in range(len(pooled))]))
    if name == "case_size":
        return np.log2(winner.size) / 32
    assert name == "case_disagreement"
    return disagreement(winner, members).mean()

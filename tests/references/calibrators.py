"""Calibrators voxel by voxel in numpy, straight from the paper's formulas with W = G^-1 W' G."""

import numpy as np


def log_softmax(z):
    z = np.asarray(z, dtype=np.float64)
    shifted = z - z.max()
    return shifted - np.log(np.exp(shifted).sum())


def conditional_dirichlet(z, weights, biases):
    """One voxel: the expert of the argmax acts on log-probabilities."""
    expert = int(np.argmax(z))
    return log_softmax(weights[expert] @ log_softmax(z) + biases[expert])


def g_matrix(num_classes, cone):
    rows = [np.eye(num_classes)[0]]
    for k in range(1, num_classes):
        row = np.zeros(num_classes)
        row[0 if cone == "argmax" else k - 1] = 1
        row[k] = -1
        rows.append(row)
    return np.array(rows)


def canonical_order(z, cone):
    """Class at each canonical position."""
    num_classes = len(z)
    if cone == "order":
        return sorted(range(num_classes), key=lambda k: (-z[k], k))
    order = list(range(num_classes))
    winner = int(np.argmax(z))
    order[0], order[winner] = order[winner], order[0]
    return order


def cone_scaling(z, inner, first_row, bias_gaps, bias_first, cone):
    """One voxel of CMS through the assembled matrix of its expert."""
    num_classes = len(z)
    order = canonical_order(z, cone)
    expert = order[0]
    g = g_matrix(num_classes, cone)
    w_prime = np.zeros((num_classes, num_classes))
    w_prime[0] = first_row[expert]
    w_prime[1:, 1:] = inner[expert]
    w = np.linalg.inv(g) @ w_prime @ g
    b = np.empty(num_classes)
    b[0] = bias_first[expert]
    for k in range(1, num_classes):
        b[k] = (b[0] if cone == "argmax" else b[k - 1]) - bias_gaps[expert][k - 1]
    canonical = log_softmax(w @ np.asarray(z, dtype=np.float64)[order] + b)
    result = np.empty(num_classes)
    result[order] = canonical
    return result


def gap_splines(z, slopes, knots):
    """One voxel: the predicted class has a slope for every stretch of the gap between knots."""
    z = np.asarray(z, dtype=np.float64)
    own, edges = slopes[int(np.argmax(z))], [0.0, *knots, np.inf]
    scores = np.zeros(len(z))
    for k, gap in enumerate(z.max() - z):
        for slope, low, high in zip(own, edges[:-1], edges[1:], strict=True):
            if gap > low:
                scores[k] -= slope * (min(gap, high) - low)
    return log_softmax(scores)


def feature_temperature(z, features, coefficients, knots):
    """One voxel: 1/T from a constant and from hats over the knots of each feature; negative coefficients count as 0."""
    inverse, weights = max(coefficients[0], 1e-3), iter(coefficients[1:])
    for value, own in zip(features, knots, strict=True):
        for hat in np.eye(len(own)):
            inverse += max(next(weights), 0.0) * np.interp(value, own, hat)
    return log_softmax(np.asarray(z, dtype=np.float64) * inverse)


def feature_network(z, features, hidden, hidden_bias, out, out_bias):
    """One voxel: log 1/T from a hidden layer on the features and the winner, bounded by log 1000."""
    z, bound = np.asarray(z, dtype=np.float64), np.log(1000.0)
    inputs = [*features, *(float(label == z.argmax()) for label in range(len(z)))]
    units = [
        np.tanh(bias + sum(w * x for w, x in zip(row, inputs, strict=True)))
        for row, bias in zip(hidden, hidden_bias, strict=True)
    ]
    level = out_bias[0] + sum(a * unit for a, unit in zip(out[0], units, strict=True))
    return log_softmax((z - z.max()) * np.exp(bound * np.tanh(level / bound)))


def ensemble_temperature(z, temperature, weights):
    z = np.asarray(z, dtype=np.float64)
    tempered, original = np.exp(log_softmax(z / temperature)), np.exp(log_softmax(z))
    return np.log(weights[0] * tempered + weights[1] * original + weights[2] / len(z))


def mixture(log_probs, weights):
    """Mixture (n, C) of maps (K, n, C): negative weights count as 0, the rest is normalised."""
    weights = np.maximum(np.asarray(weights, dtype=np.float64), 0)
    if weights.sum() == 0:
        weights[0] = 1
    weights = weights / weights.sum()
    used = weights > 0
    shift = log_probs[used].max(axis=0)
    total = np.zeros_like(shift)
    for weight, part in zip(weights[used], log_probs[used], strict=True):
        total += weight * np.exp(part - shift)
    return shift + np.log(total)


def local_temperature(logits, kernels, biases):
    """Temperature map (H, W) of logits (C, H, W): seven 5x5 kernels, dilation 2, mirrored borders."""
    channels, height, width = logits.shape

    def mirrored(i, n):
        if n == 1:
            return 0
        while not 0 <= i < n:
            i = -i if i < 0 else 2 * (n - 1) - i
        return i

    maps = np.empty((7, height, width))
    for k in range(7):
        for y in range(height):
            for x in range(width):
                total = biases[k]
                for c in range(channels):
                    for dy in range(5):
                        for dx in range(5):
                            source = logits[c, mirrored(y + 2 * (dy - 2), height), mirrored(x + 2 * (dx - 2), width)]
                            total += kernels[k, c, dy, dx] * source
                maps[k, y, x] = total
    t1, t2, t3, t4 = 1 + maps[:4]
    s1, s2, s3 = 1 / (1 + np.exp(-maps[4:]))
    left = t1 * s1 + t2 * (1 - s1)
    right = t3 * s2 + t4 * (1 - s2)
    root = left * s3 + right * (1 - s3)
    return 0.01 + np.log1p(np.exp(root - 1 + np.log(np.expm1(0.99))))

"""Scores of features and inputs against their published formulas, in NumPy and scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors

import jaxeff
from jaxeff import uncertainty as u
from jaxeff.nn import small_classifier
from jaxeff.program.costs import inputs_of

F, PARAMS, (X, Y) = small_classifier(300)
FEATURES = inputs_of(F, "fc2")
H, LABELS = FEATURES(PARAMS, X[:250]), Y[:250]
NEW = FEATURES(PARAMS, X[250:]) + 0.3
READ = u.dense_head(F, PARAMS, X, "fc2")
HEAD = READ._replace(bias=jnp.linspace(-1, 1, 10))
LOGITS = HEAD(NEW)
WIDE_H, WIDE_NEW = np.asarray(H, np.float64), np.asarray(NEW, np.float64)
KERNEL, BIAS = (np.asarray(part, np.float64) for part in HEAD)
WIDE = WIDE_NEW @ KERNEL + BIAS


def unit(a):
    return a / (np.linalg.norm(a, axis=1, keepdims=True) + 1e-10)


def energy_of(features, kernel=KERNEL):
    return -logsumexp(features @ kernel + BIAS, -1)


def nearest():
    neighbours = NearestNeighbors(n_neighbors=7).fit(unit(WIDE_H))
    return neighbours.kneighbors(unit(WIDE_NEW))[0][:, -1]


def distances():
    means = np.stack([WIDE_H[np.asarray(LABELS) == c].mean(0) for c in range(10)])
    shared = EmpiricalCovariance(assume_centered=False).fit(WIDE_H - means[np.asarray(LABELS)])
    precision = np.linalg.pinv(shared.covariance_, rcond=32 * 1.2e-7, hermitian=True)
    differences = WIDE_NEW[:, None] - means[None]
    return np.einsum("ncd,de,nce->nc", differences, precision, differences) / 2


def mahalanobis():
    return distances().min(1)


def relative():
    whole = EmpiricalCovariance().fit(WIDE_H)
    precision = np.linalg.pinv(whole.covariance_, rcond=32 * 1.2e-7, hermitian=True)
    centred = WIDE_NEW - WIDE_H.mean(0)
    background = np.einsum("nd,de,ne->n", centred, precision, centred) / 2
    return (distances() - background[:, None]).min(1)


def virtual_logit():
    origin = -np.linalg.pinv(KERNEL.T) @ BIAS
    # Not by eigenvectors of the covariance: those of several zeros needn't be orthogonal.
    rest = np.linalg.svd(WIDE_H - origin)[2][12:].T
    train = np.linalg.norm((WIDE_H - origin) @ rest, axis=-1)
    alpha = (WIDE_H @ KERNEL + BIAS).max(-1).mean() / train.mean()
    return alpha * np.linalg.norm((WIDE_NEW - origin) @ rest, axis=-1) - logsumexp(WIDE, -1)


def clipped():
    return energy_of(WIDE_NEW.clip(max=np.percentile(WIDE_H.flatten(), 80)))


def sparse():
    contributions = WIDE_H.mean(0)[None] * KERNEL.T
    mask = contributions > np.percentile(contributions, 70)
    return energy_of(WIDE_NEW, (KERNEL.T * mask).T)


def pruned(kind):
    size = WIDE_NEW.shape[1]
    kept = size - int(np.round(size * 65 / 100))
    found = np.zeros_like(WIDE_NEW)
    for n, row in enumerate(WIDE_NEW):
        top = np.argsort(-row)[:kept]
        new = {"prune": row[top], "binary": row.sum() / kept,
               "scale": row[top] * np.exp(row.sum() / row[top].sum())}  # fmt: skip
        found[n, top] = new[kind]
    return energy_of(found)


CASES = {
    "KNN": (lambda: u.knn(H, 7), nearest),
    "Mahalanobis": (lambda: u.mahalanobis(H, LABELS, 10), mahalanobis),
    "relative Mahalanobis": (lambda: u.relative_mahalanobis(H, LABELS, 10), relative),
    "ViM": (lambda: u.vim(H, HEAD, 12), virtual_logit),
    "ReAct": (lambda: u.react(H, HEAD, 80), clipped),
    "DICE": (lambda: u.dice(H, HEAD, 70), sparse),
    **{
        f"ASH {kind}": (lambda kind=kind: u.ash(HEAD, 65, kind), lambda kind=kind: pruned(kind))
        for kind in ("prune", "binary", "scale")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_a_score_is_its_formula(name):
    fit, formula = CASES[name]
    score = fit()
    expected = formula()
    # Scores are float32 sums over the features; a difference of distances loses what they share.
    scale = np.abs(mahalanobis()).max() if "Mahalanobis" in name else np.abs(expected).max()
    scores = jax.jit(lambda score, h, z: score(h, z))(score, NEW, LOGITS)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.slow
def test_all_are_pytrees_that_go_through_jit_and_vmap():
    for fit, _ in CASES.values():
        score = fit()
        alone = jax.vmap(lambda h, z, s=score: s(h[None], z[None])[0])(NEW, LOGITS)
        np.testing.assert_allclose(alone, score(NEW, LOGITS), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["KNN", "Mahalanobis", "relative Mahalanobis", "ViM"])
def test_what_lies_far_away_scores_higher(name):
    score = CASES[name][0]()
    far = 3 * H[:50].max() * jax.random.normal(jax.random.key(0), (50, H.shape[1]))
    assert u.auroc(score(H, HEAD(H)), score(far, HEAD(far))) > 0.95


@pytest.mark.slow
def test_what_excites_no_class_scores_higher():
    inside = 4 * jnp.eye(6)
    outside = inside.mean() * jnp.ones((6, 6))  # as much in all, none of it where a class looks
    head = u.DenseHead(jnp.eye(6), jnp.zeros(6))
    every = [u.react(inside, head, 99), u.dice(inside, head, 80), u.ash(head, 50)]
    for score in every:
        assert u.auroc(score(inside, inside), score(outside, outside)) == 1


@pytest.mark.slow
def test_odin_is_its_formula():
    x, step, temperature = X[:20], 0.02, 50.0

    def cross_entropy(x, classes):
        log_probs = jax.nn.log_softmax(F(PARAMS, x) / temperature)
        return -jnp.take_along_axis(log_probs, classes[:, None], 1).sum()

    slope = np.asarray(jax.grad(cross_entropy)(x, F(PARAMS, x).argmax(-1)))
    moved = np.asarray(x) - step * np.where(slope >= 0, 1, -1)
    probs = softmax(np.asarray(F(PARAMS, jnp.asarray(moved, x.dtype)), np.float64) / 50, -1)
    scores = jax.jit(u.odin(F, temperature, step))(PARAMS, x)
    largest = probs.max(-1)
    np.testing.assert_allclose(scores, np.log((1 - largest) / largest), rtol=1e-5)


@pytest.mark.slow
def test_scored_returns_outputs_and_scores():
    score = u.knn(H, 7)
    outputs, scores = jax.jit(u.scored(F, "fc2", score))(PARAMS, X[250:])
    np.testing.assert_allclose(outputs, F(PARAMS, X[250:]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scores, score(FEATURES(PARAMS, X[250:])), rtol=1e-3, atol=1e-4)
    _, energies = u.scored(F, "fc2", lambda h, z: u.energy(z))(PARAMS, X[250:])
    np.testing.assert_allclose(energies, u.energy(outputs), rtol=1e-5)


def test_a_head_computes_the_logits():
    np.testing.assert_allclose(READ(H), F(PARAMS, X[:250]), rtol=1e-4, atol=1e-5)


@pytest.mark.oracle
def test_information_is_that_of_samples_where_variances_are_small():
    key = jax.random.key(0)
    mean = 2 * jax.random.normal(key, (6, 5))
    root = 0.1 * jax.random.normal(jax.random.key(1), (6, 5, 5))
    cov = root @ root.mT
    joint = jaxeff.moment_propagation.JointGaussian(mean, cov)
    alone = jaxeff.Gaussian(mean, jnp.diagonal(cov, axis1=1, axis2=2))
    for logits in (joint, alone):
        with jax.numpy_rank_promotion("allow"):  # a sample of a joint distribution adds its mean
            drawn = u.sample_logits(jax.random.key(2), logits, 40_000)
        probs = jax.nn.softmax(drawn)
        divergence = (probs * (jnp.log(probs) - jnp.log(probs.mean(0))[None])).sum(-1)
        error = divergence.std(0) / 200
        expected = divergence.mean(0)
        information = u.moment_information(logits)
        # Five standard errors, and 6 % for the higher orders of variances up to about .1.
        assert (np.abs(information - expected) < 5 * error + 0.06 * expected).all()


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="class 3 has no examples"):
        u.mahalanobis(H, jnp.where(LABELS == 3, 2, LABELS), 10)
    with pytest.raises(ValueError, match="k=251 needs as many features"):
        u.knn(H, 251)
    with pytest.raises(ValueError, match="dimensions must be fewer than the 32"):
        u.vim(H, HEAD, 32)
    with pytest.raises(ValueError, match="those the head reads, 32, not 3"):
        u.vim(H[:, :3], HEAD)
    with pytest.raises(ValueError, match="don't vary"):
        u.mahalanobis(jnp.ones((10, 3)), jnp.arange(10), 10)

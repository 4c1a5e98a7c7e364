"""Random numbers: bits, distributions, permutations, Markov chains."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.conformance.programs.family import KEY, Family, normal

FAMILY = Family("sampling")
program = FAMILY.program


@program(KEY)
def _random_bits(key):
    return [jax.random.bits(key, (37,), dtype) for dtype in ("uint8", "uint16", "uint32")]


@program(KEY)
def _split_and_fold_in(key):
    return jax.random.split(key, 5), jax.random.fold_in(key, 7)


@program(KEY)
def _uniform(key):
    return jax.random.uniform(key, (100,)), jax.random.uniform(key, (9,), jnp.bfloat16, -1, 2)


@program(KEY)
def _normal(key):
    return jax.random.normal(key, (64, 32))


@program(KEY)
def _random_integers(key):
    return jax.random.randint(key, (50,), -3, 12), jax.random.randint(key, (9,), 0, 200, jnp.uint8)


@program(KEY, normal(8, 10))
def _categorical(key, logits):
    return jax.random.categorical(key, logits)


@program(KEY, normal(8, 10))
def _gumbel_softmax(key, logits):
    return jax.nn.softmax((logits + jax.random.gumbel(key, logits.shape)) / 0.5)


@program(KEY)
def _permutation(key):
    return jax.random.permutation(key, 50), jax.random.permutation(key, jnp.eye(6), axis=1)


@program(KEY, normal(20))
def _choice(key, p):
    p = jax.nn.softmax(p)
    return (
        jax.random.choice(key, 20, (5,), p=p),
        jax.random.choice(key, 20, (5,), replace=False),
    )


@program(KEY)
def _bernoulli_and_rademacher(key):
    return jax.random.bernoulli(key, 0.3, (40,)), jax.random.rademacher(key, (40,))


@program(KEY)
def _truncated_normal_and_laplace(key):
    return jax.random.truncated_normal(key, -1, 2, (40,)), jax.random.laplace(key, (40,))


@program(KEY)
def _exponential_cauchy_and_logistic(key):
    distributions = (jax.random.exponential, jax.random.cauchy, jax.random.logistic)
    return [f(key, (30,)) for f in distributions]


@program(KEY)
def _gamma(key):
    return jax.random.gamma(key, jnp.array([0.3, 1.0, 4.5, 20.0]))


@program(KEY)
def _beta_and_dirichlet(key):
    return jax.random.beta(key, 2.0, 3.0, (6,)), jax.random.dirichlet(key, jnp.arange(1.0, 6))


@program(KEY)
def _poisson(key):
    return jax.random.poisson(key, jnp.array([0.5, 3.0, 30.0]))


@program(KEY)
def _binomial(key):
    return jax.random.binomial(key, 12, 0.3, (8,))


@program(KEY)
def _multivariate_normal(key):
    cov = jnp.array([[2.0, 0.5], [0.5, 1.0]])
    return jax.random.multivariate_normal(key, jnp.ones(2), cov, (10,))


@program(KEY, normal(2, 8, 10))
def _top_k_and_nucleus_sampling(key, logits):
    kept = jnp.where(logits < lax.top_k(logits, 4)[0][..., -1:], -jnp.inf, logits)
    order = jnp.argsort(-logits, -1)
    mass = jnp.cumsum(jax.nn.softmax(jnp.take_along_axis(logits, order, -1)), -1)
    nucleus = jnp.where(mass > 0.9, -jnp.inf, jnp.take_along_axis(logits, order, -1))
    pick = jax.random.categorical(key, nucleus)
    return jax.random.categorical(key, kept), jnp.take_along_axis(order, pick[..., None], -1)


def potential(q):
    """The energy of a warped Gaussian."""
    return 0.5 * (q[0] ** 2 + jnp.sum((q[1:] - q[0] ** 2) ** 2))


def leapfrog(q, p, step, count):
    """Hamilton's equations for some steps."""

    def advance(state, _):
        q, p = state
        p = p - 0.5 * step * jax.grad(potential)(q)
        q = q + step * p
        return (q, p - 0.5 * step * jax.grad(potential)(q)), None

    return lax.scan(advance, (q, p), length=count)[0]


def hmc(key, q):
    """One step of Hamiltonian Monte Carlo."""
    key_p, key_u = jax.random.split(key)
    p = jax.random.normal(key_p, q.shape)
    new_q, new_p = leapfrog(q, p, 0.1, 8)
    energy = potential(q) + 0.5 * p @ p
    accept = jnp.log(jax.random.uniform(key_u)) < energy - potential(new_q) - 0.5 * new_p @ new_p
    return jnp.where(accept, new_q, q), accept


@program(KEY, normal(4))
def _hmc_step(key, q):
    return hmc(key, q)


@program(KEY, normal(4))
def _hmc_chain(key, q):
    def step(q, key):
        q, accepted = hmc(key, q)
        return q, (q, accepted)

    return lax.scan(step, q, jax.random.split(key, 30))


@program(KEY, normal(3, 4))
def _several_hmc_chains(key, q):
    return jax.vmap(hmc)(jax.random.split(key, 3), q)


@program(KEY, normal(3))
def _metropolis_chain(key, q):
    def step(q, key):
        propose, accept = jax.random.split(key)
        new = q + 0.5 * jax.random.normal(propose, q.shape)
        ratio = potential(q) - potential(new)
        q = jnp.where(jnp.log(jax.random.uniform(accept)) < ratio, new, q)
        return q, q

    return lax.scan(step, q, jax.random.split(key, 100))[1]


@program(KEY, normal(3))
def _langevin_dynamics(key, q):
    def step(i, q):
        noise = jax.random.normal(jax.random.fold_in(key, i), q.shape)
        return q - 0.05 * jax.grad(potential)(q) + jnp.sqrt(0.1) * noise

    return lax.fori_loop(0, 50, step, q)


@program(KEY, normal(2))
def _no_u_turn_trajectory(key, q):
    start = jax.random.normal(key, q.shape)

    def going(state):
        q1, p1, count = state
        return (count < 64) & ((q1 - q) @ p1 >= 0)

    def step(state):
        q1, p1, count = state
        q1, p1 = leapfrog(q1, p1, 0.2, 1)
        return q1, p1, count + 1

    return lax.while_loop(going, step, (q, start, 0))


@program(KEY)
def _rejection_sampling(key):
    def outside(state):
        return jnp.sum(state[1] ** 2) > 0.3

    def draw(state):
        key, sub = jax.random.split(state[0])
        return key, jax.random.uniform(sub, (2,), minval=-1, maxval=1), state[2] + 1

    return lax.while_loop(outside, draw, (key, jnp.ones(2), 0))[1:]


@program(KEY)
def _gibbs_sampling_of_an_ising_model(key):
    mask = (jnp.indices((8, 8)).sum(0) % 2).astype(bool)

    def sweep(spins, key):
        for side, key in zip((mask, ~mask), jax.random.split(key), strict=True):  # noqa: B020
            field = sum(jnp.roll(spins, s, a) for s in (1, -1) for a in (0, 1))
            up = jax.random.uniform(key, spins.shape) < jax.nn.sigmoid(0.8 * field)
            spins = jnp.where(side, jnp.where(up, 1.0, -1.0), spins)
        return spins, spins.mean()

    return lax.scan(sweep, jnp.ones((8, 8)), jax.random.split(key, 20))


@program(KEY, normal(16), normal(16))
def _particle_filter_step(key, particles, weights):
    moved = particles + 0.1 * jax.random.normal(key, (16,))
    weights = jax.nn.softmax(weights - 0.5 * (moved - 0.3) ** 2)
    points = (jnp.arange(16) + jax.random.uniform(key)) / 16
    chosen = jnp.searchsorted(jnp.cumsum(weights), points)
    return moved[jnp.clip(chosen, 0, 15)]


@program(KEY)
def _philox_bits(key):
    return lax.rng_bit_generator(jnp.tile(key, 2), (20,), algorithm=lax.RandomAlgorithm.RNG_PHILOX)


@program(KEY, normal(5, 3), normal(5))
def _nuts_with_numpyro(key, x, y):
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer.hmc import hmc as numpyro_hmc
    from numpyro.infer.util import initialize_model

    def model():
        w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    info = initialize_model(jax.random.PRNGKey(1), model)
    setup, kernel = numpyro_hmc(info.potential_fn, algo="NUTS")
    state = setup(
        info.param_info, num_warmup=0, step_size=0.1, rng_key=key, max_tree_depth=4,
        adapt_step_size=False, adapt_mass_matrix=False,
    )  # fmt: skip
    state = kernel(state)
    return state.z, state.num_steps

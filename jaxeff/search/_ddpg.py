"""`DDPG`: Galen's agent, deep deterministic policy gradients over the layers of a model.

An episode goes through the layers in order. The actor sees a layer's features and says its
actions, noise is added, and when the whole policy has been measured every step gets the episode's
reward. The critic learns Q(s, a) = r - baseline + gamma Q'(s', mu'(s')), which ends at the last
layer, and the actor climbs it.

```python
from jaxeff.search import DDPG

DDPG(warm_up=10, noise="truncated")              # as released
DDPG(noise="ou", capacity=10**6)                 # as the text says
```

References:
    Lillicrap et al., "Continuous control with deep reinforcement learning", arXiv 1509.02971.
    Krieger et al., "Galen", arXiv 2212.07818.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.core import Choice, Count, Number, Setting, optional, register_setting, static
from jaxeff.search._candidates import CompressionSensitivity
from jaxeff.search._objectives import Absolute, Reward
from jaxeff.search._searcher import EpisodeResult, Searcher, SearchProblem
from jaxeff.search._space import Actions, Policy, SearchSpace


class Running(NamedTuple):
    """Running mean and variance (Welford).

    Attributes:
        number: Number of values so far.
        mean: Running mean of each number.
        squares: Sums of squared deviations.
    """

    number: Float[Array, ""]
    mean: Float[Array, " features"]
    squares: Float[Array, " features"]

    @classmethod
    def start(cls, size: int) -> Running:
        """Makes empty statistics."""
        return cls(jnp.zeros(()), jnp.zeros(size), jnp.zeros(size))

    def add(self, x: Float[Array, "n features"]) -> Running:
        """Updates the statistics by a batch."""
        number = self.number + len(x)
        mean, squares = x.mean(0), ((x - x.mean(0)) ** 2).sum(0)
        # Chan's update of mean and squares by a batch: stable for features of very different sizes.
        apart = mean - self.mean
        return Running(
            number,
            self.mean + apart * len(x) / number,
            self.squares + squares + apart**2 * self.number * len(x) / number,
        )

    def standardised(self, x: Float[Array, "*n features"]) -> Float[Array, "*n features"]:
        """Standardises to zero mean and unit variance; what never varies is zero."""
        deviation = jnp.sqrt(self.squares / jnp.maximum(self.number, 1.0))
        return jnp.where(
            deviation > 1e-6, (x - self.mean) / jnp.maximum(deviation, 1e-6), jnp.zeros_like(x)
        )


def fixed_features(
    space: SearchSpace, actions: Actions, known: CompressionSensitivity | None
) -> Float[np.ndarray, "layers fixed"]:
    """Computes the features of every layer that no decision changes."""
    uncompressed = space.uncompressed
    sites, count = space.sites, len(space.sites)
    columns = [
        np.arange(count) / count,
        np.asarray(space.macs(uncompressed)),
        *([np.asarray(space.bops(uncompressed))] if actions.quantizes else []),
        [site.written.size for site in sites],
        [site.read.size for site in sites],
        [site.kernel for site in sites],
        [site.stride for site in sites],
        [site.weights for site in sites],
    ]
    features = np.stack([np.asarray(column, np.float64) for column in columns], 1)
    if known is not None:
        tables = [known.pruning] if actions.prunes else []
        if actions.quantizes:
            zero = np.zeros((count, 1))
            tables += [known.activations, known.weights, known.eight[:, None], zero]
        # Divergences span many decades.
        features = np.concatenate([features, *(np.log10(1e-9 + t) for t in tables)], 1)
    return features.astype(np.float32)


def moving_features(
    space: SearchSpace, actions: Actions, policy: Policy
) -> Float[Array, "layers moving"]:
    """Computes shares of the model before and from every layer, if a policy held up to there."""
    uncompressed = space.uncompressed
    counts = [space.macs, space.bops] if actions.quantizes else [space.macs]
    columns = []
    for count in counts:
        now, before = count(policy), count(uncompressed)
        total = before.sum()
        # Layers before as decided so far, layers from here on as they are: what is left to save.
        columns += [(jnp.cumsum(now) - now) / total, jnp.cumsum(before[::-1])[::-1] / total]
    return jnp.stack(columns, 1)


class _Actor(linen.Module):
    """State to actions."""

    actions: int

    @linen.compact
    def __call__(self, state: Array) -> Array:
        x = linen.relu(linen.Dense(400)(state))
        x = linen.relu(linen.Dense(300)(x))
        # Small last weights (Lillicrap et al.): actions start where the sigmoid is steepest.
        return linen.sigmoid(linen.Dense(self.actions, kernel_init=_small(3e-3))(x))


class _Critic(linen.Module):
    """State and actions to their value."""

    @linen.compact
    def __call__(self, state: Array, action: Array) -> Array:
        x = linen.relu(linen.Dense(400)(state) + linen.Dense(400, use_bias=False)(action))
        x = linen.relu(linen.Dense(300)(x))
        return linen.Dense(1, kernel_init=_small(3e-4))(x)[..., 0]


def _small(bound: float) -> Any:
    def initial(key: PRNGKeyArray, shape: Any, dtype: Any = jnp.float32) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return initial


class Agent(NamedTuple):
    """The state of a search.

    Attributes:
        actor: Parameters.
        critic: Parameters.
        targets: Both, slowly following.
        actor_optimizer: The state of the actor's optimizer.
        critic_optimizer: The state of the critic's optimizer.
        memory: Steps of past episodes.
        known: Features that nothing changes.
        seen: Mean and variance of all features.
        features: Features of the episode.
        baseline: Moving mean of the reward.
        episode: Number of episodes so far.
    """

    actor: Any
    critic: Any
    targets: tuple[Any, Any]
    actor_optimizer: Any
    critic_optimizer: Any
    memory: Any
    known: Float[Array, "layers fixed"]
    seen: Running
    features: Float[Array, "layers features"]
    baseline: Float[Array, ""]
    episode: Int[Array, ""]


@register_setting
class DDPG(Setting):
    """The agent's numbers; the defaults are those of the released searches.

    Where the text (Klein's thesis, section 4.2.7) and the released code differ, both can be had:
    exploration by Ornstein-Uhlenbeck noise or by a normal distribution truncated to [0, 1] around
    the action, which is the default, and how many steps are remembered. Unlike the released code,
    one critic value judges all actions of a step, and nothing is expected beyond the last step.

    Features are by layer (Klein's thesis, section 4.2; the list is that of the released code): its
    place, multiply-accumulates, bit operations, channels out and in, kernel, stride, parameters; of
    the whole model, the shares of multiply-accumulates and bit operations that the layers before it
    have by the policy so far, and that the layers from it on have as they are; its sensitivities;
    the last layer's actions. With actions of both kinds these are 47 numbers. One that doesn't
    quantize isn't given bits, and one that doesn't prune not of channels that could go.

    Attributes:
        warm_up: Episodes of uniform random actions.
        noise: "truncated" or "ou".
        deviation: Standard deviation of the noise after the warm-up.
        decay: Factor of that deviation per episode.
        reversion: Rate at which Ornstein-Uhlenbeck noise reverts to zero, per step.
        capacity: Steps that are remembered.
        batch_size: Remembered steps per update.
        updates: Updates per episode.
        discount: Discount of rewards per step.
        follow: Share by which targets move per update.
        actor_rate: Learning rate of the actor, with Adam.
        critic_rate: Learning rate of the critic, with Adam.
        critic_decay: Squared penalty on the critic's weights.
        baseline: Share by which the mean reward moves per episode.
    """

    warm_up: Annotated[int, Count(0)] = static(10)
    noise: Annotated[str, Choice("truncated", "ou")] = static("truncated")
    deviation: Annotated[float, Number(0)] = static(0.5)
    decay: Annotated[float, Number(0, high=1)] = static(0.95)
    reversion: Annotated[float, Number(0, high=1)] = static(0.15)
    capacity: Annotated[int, Count(1)] = static(2000)
    batch_size: Annotated[int, Count(1)] = static(128)
    updates: Annotated[int, Count(1)] = static(1)
    discount: Annotated[float, Number(0, high=1)] = static(0.99)
    follow: Annotated[float, Number(0, high=1)] = static(1e-3)
    actor_rate: Annotated[float, Number(above=0)] = static(1e-4)
    critic_rate: Annotated[float, Number(above=0)] = static(1e-3)
    critic_decay: Annotated[float, Number(0)] = static(1e-2)
    baseline: Annotated[float, Number(0, high=1)] = static(0.5)

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> Agent:
        layers, count = problem.shape
        known = jnp.asarray(fixed_features(problem.space, problem.actions, problem.known))
        # Fixed features; shares of MACs, and of bit operations, on both sides; the last actions.
        size = known.shape[1] + (4 if problem.actions.quantizes else 2) + count
        state, action = jnp.zeros(size), jnp.zeros(count)
        first, second = jax.random.split(key)
        actor = _Actor(count).init(first, state)
        critic = _Critic().init(second, state, action)
        of_actor, of_critic = self._optimizers()
        step = {
            "state": state, "action": action, "reward": jnp.zeros(()), "next": state,
            "goes_on": jnp.zeros(()),
        }  # fmt: skip
        return Agent(
            actor, critic, (actor, critic), of_actor.init(actor), of_critic.init(critic),
            self._memory(layers).init(step), known, Running.start(size), jnp.zeros((layers, size)),
            jnp.zeros(()), jnp.zeros((), jnp.int32),
        )  # fmt: skip

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Agent
    ) -> tuple[Float[Array, "layers actions"], Agent]:
        actions, features = _walk(self, problem.space, problem.actions, key, state)
        return actions, state._replace(features=features)

    def propose_many(
        self, keys: Sequence[PRNGKeyArray], problem: SearchProblem, state: Agent
    ) -> list[Float[Array, "layers actions"]]:
        """Implements `_searcher.py`: what is left of the warm-up."""
        left = max(self.warm_up - int(state.episode), 0)
        return [self.propose(key, problem, state)[0] for key in keys[:left]]

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Agent, outcome: EpisodeResult
    ) -> Agent:
        agent: Agent = _learn(
            self, problem.shape, key, state, jnp.asarray(outcome.actions), outcome.reward
        )
        return agent

    def _optimizers(self) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
        critic = optax.chain(
            optax.add_decayed_weights(self.critic_decay), optax.adam(self.critic_rate)
        )
        return optax.adam(self.actor_rate), critic

    def _memory(self, layers: int) -> Any:
        flashbax = optional("flashbax", "the memory of DDPG", "search")
        size = -(-self.capacity // layers) * layers  # whole episodes
        # Steps of one episode are added together, so the capacity holds whole episodes.
        return flashbax.make_item_buffer(
            max_length=size, min_length=layers, sample_batch_size=self.batch_size,
            add_batches=True,
        )  # fmt: skip


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _walk(
    agent: DDPG, space: SearchSpace, of: Actions, key: PRNGKeyArray, state: Agent
) -> tuple[Float[Array, "layers actions"], Float[Array, "layers features"]]:
    """Computes the actions of an episode, and the features before each."""
    layers, count = len(space.sites), of.count
    after = state.episode - agent.warm_up
    deviation = agent.deviation * agent.decay ** jnp.maximum(after, 0)

    def step(carry: Any, inputs: Any) -> Any:
        actions, noise = carry
        i, key = inputs
        # The state of layer i depends on what was decided before it, so layers are walked
        # by a scan.
        shares = moving_features(space, of, of.policy(space, actions))[i]
        last = jnp.where(i > 0, actions[i - 1], 0.0)
        features = jnp.concatenate([state.known[i], shares, last])
        mean: Any = _Actor(count).apply(state.actor, state.seen.standardised(features))
        if agent.noise == "ou":
            drawn = deviation * jax.random.normal(key, (count,))
            noise = noise * (1 - agent.reversion) + drawn
            explored = jnp.clip(mean + noise, 0, 1)
        else:
            # A truncated normal instead of clipping: no probability piles up at the ends 0 and 1.
            width = jnp.maximum(deviation, 1e-6)
            low, high = (0 - mean) / width, (1 - mean) / width
            explored = mean + width * jax.random.truncated_normal(key, low, high)
            explored = jnp.clip(explored, 0, 1)
        # Both are drawn: whether it is the warm-up is a traced number.
        uniform = jax.random.uniform(key, (count,))
        action = jnp.where(after < 0, uniform, explored)
        return (actions.at[i].set(action), noise), features

    inputs = (jnp.arange(layers), jax.random.split(key, layers))
    (actions, _), features = jax.lax.scan(
        step, (jnp.zeros((layers, count)), jnp.zeros(count)), inputs
    )
    return actions, features


@functools.partial(jax.jit, static_argnums=(0, 1))
def _learn(
    agent: DDPG,
    shape: tuple[int, int],
    key: PRNGKeyArray,
    state: Agent,
    actions: Array,
    reward: Any,
) -> Agent:
    """Puts an episode into the memory and updates the networks from it."""
    memory = agent._memory(shape[0])
    reward = jnp.asarray(reward, jnp.float32)
    # Every step of an episode gets the episode's reward, as there is none before the measurement.
    following = jnp.concatenate([state.features[1:], jnp.zeros_like(state.features[:1])])
    goes_on = jnp.arange(shape[0]) < shape[0] - 1
    steps = {
        "state": state.features, "action": actions, "reward": jnp.full(shape[0], reward),
        "next": following, "goes_on": goes_on.astype(jnp.float32),
    }  # fmt: skip
    first = state.episode == 0
    # A moving mean is subtracted from rewards: only what is better than usual is reinforced.
    baseline = jnp.where(first, reward, state.baseline + agent.baseline * (reward - state.baseline))
    state = state._replace(
        memory=memory.add(state.memory, steps), seen=state.seen.add(state.features),
        baseline=baseline, episode=state.episode + 1,
    )  # fmt: skip

    def update(state: Agent, key: PRNGKeyArray) -> tuple[Agent, None]:
        return _update(agent, shape[1], key, state), None

    def trained(state: Agent) -> Agent:
        return jax.lax.scan(update, state, jax.random.split(key, agent.updates))[0]

    # Random episodes fill the memory and the features' statistics before anything is learnt.
    return jax.lax.cond(state.episode <= agent.warm_up, lambda state: state, trained, state)


def _update(agent: DDPG, count: int, key: PRNGKeyArray, state: Agent) -> Agent:
    batch = agent._memory(len(state.features)).sample(state.memory, key).experience
    of_actor, of_critic = agent._optimizers()
    actor, critic = _Actor(count), _Critic()
    seen, following = map(state.seen.standardised, (batch["state"], batch["next"]))
    slow_actor, slow_critic = state.targets
    # Bellman target with the slow networks: a target that moves with the critic diverges.
    # `goes_on` is zero at the last layer, after which there is nothing to expect.
    later: Any = critic.apply(slow_critic, following, actor.apply(slow_actor, following))
    wanted = batch["reward"] - state.baseline + agent.discount * batch["goes_on"] * later

    def error(params: Any) -> Array:
        return jnp.mean((critic.apply(params, seen, batch["action"]) - wanted) ** 2)

    change, critic_optimizer = of_critic.update(
        jax.grad(error)(state.critic), state.critic_optimizer, state.critic
    )
    new_critic = optax.apply_updates(state.critic, change)

    # Deterministic policy gradient: the actor climbs the critic's value (Lillicrap et al.).
    def worth(params: Any) -> Array:
        value: Any = critic.apply(new_critic, seen, actor.apply(params, seen))
        return -jnp.mean(value)

    change, actor_optimizer = of_actor.update(
        jax.grad(worth)(state.actor), state.actor_optimizer, state.actor
    )
    new_actor = optax.apply_updates(state.actor, change)
    # Soft updates; tau is 1e-3 in Klein's thesis, section 4.2.7.
    targets = optax.incremental_update((new_actor, new_critic), state.targets, agent.follow)
    return state._replace(
        actor=new_actor, critic=new_critic, targets=targets, actor_optimizer=actor_optimizer,
        critic_optimizer=critic_optimizer,
    )  # fmt: skip


class Stage(NamedTuple):
    """State of the search.

    Attributes:
        memory: The agent's.
        episode: Number of episodes so far.
        best: Actions of the first stage with its highest reward.
        reward: Highest reward of the first stage.
    """

    memory: Any
    episode: int
    best: Float[np.ndarray, "layers actions"]
    reward: float


@register_setting
class Sequential(Setting):
    """Two searches on one budget of episodes.

    `Sequential` searches by one method after the other, the first halfway to the target: the
    comparison in Klein's thesis, section 4.3. Half of the episodes search for channels, at the
    square root of the latency that is asked for; the best of them is kept, and the other half
    searches for bits on top of it, or the other way around.

    ```python
    from jaxeff.search import Sequential

    Sequential(first="pruning")
    Sequential(first="quantization", agent=DDPG(warm_up=5))
    ```

    Attributes:
        first: "pruning" or "quantization".
        agent: Searcher of both stages.
        reward: Reward that judges the first stage, at its own target.
    """

    first: Annotated[str, Choice("pruning", "quantization")] = static("pruning")
    agent: Searcher = static(DDPG())
    reward: Reward = static(Absolute())

    def start(self, key: PRNGKeyArray, problem: SearchProblem) -> Stage:
        """Implements `Searcher`.

        Raises:
            ValueError: The actions are not `methods="both"`.
        """
        if problem.actions.methods != "both":
            raise ValueError(
                f"Sequential searches for channels and bits: its actions are methods='both', not "
                f"{problem.actions.methods!r}"
            )
        none = np.zeros(problem.shape, np.float32)
        return Stage(self.agent.start(key, self._inner(problem, 0)), 0, none, -np.inf)

    def propose(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Stage
    ) -> tuple[Float[Array, "layers actions"], Stage]:
        if state.episode == problem.episodes // 2:  # the second agent starts
            inner = self._inner(problem, state.episode)
            memory = self.agent.start(jax.random.fold_in(key, 1), inner)
            state = state._replace(memory=memory)
        inner = self._inner(problem, state.episode)
        proposed, memory = self.agent.propose(key, inner, state.memory)
        columns = self._columns(problem, state.episode)
        # The second method acts on top of the best that the first one found.
        base = state.best if self._is_second(problem, state.episode) else np.zeros(problem.shape)
        actions = jnp.asarray(base, jnp.float32).at[:, columns].set(proposed)
        return actions, state._replace(memory=memory)

    def learn(
        self, key: PRNGKeyArray, problem: SearchProblem, state: Stage, outcome: EpisodeResult
    ) -> Stage:
        inner, columns = self._inner(problem, state.episode), self._columns(problem, state.episode)
        best, reward = state.best, state.reward
        seen = outcome._replace(actions=outcome.actions[:, columns])
        if not self._is_second(problem, state.episode):
            # The first stage has a milder target, the root of the whole one: both stages
            # save the same factor.
            ratio = outcome.ratio * problem.target / inner.target
            stage_reward = self.reward(outcome.accuracy, ratio, 1.0)
            seen = seen._replace(ratio=ratio, reward=stage_reward)
            if stage_reward > reward:
                best, reward = np.asarray(outcome.actions, np.float32), stage_reward
        memory = self.agent.learn(key, inner, state.memory, seen)
        return Stage(memory, state.episode + 1, best, reward)

    def _is_second(self, problem: SearchProblem, episode: int) -> bool:
        return episode >= problem.episodes // 2

    def _columns(self, problem: SearchProblem, episode: int) -> slice:
        prunes = (self.first == "pruning") != self._is_second(problem, episode)
        return slice(0, 1) if prunes else slice(1, 3)

    def _inner(self, problem: SearchProblem, episode: int) -> SearchProblem:
        """Makes the problem of one stage's agent."""
        second = self._is_second(problem, episode)
        prunes = (self.first == "pruning") != second
        of = problem.actions
        actions = dataclasses.replace(
            of, methods="pruning" if prunes else "quantization", round_to=of.round_to or 32
        )
        half = problem.episodes // 2
        return dataclasses.replace(
            problem, actions=actions, episodes=problem.episodes - half if second else half,
            # A looked-up latency would be that of one method, without what the other stage decides.
            target=problem.target if second else problem.target**0.5, time=None,
        )  # fmt: skip

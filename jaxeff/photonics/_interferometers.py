"""Meshes of interferometers: unitary matrices as phases, and weights that phase errors perturb.

A Mach-Zehnder interferometer mixes two waveguides: two beam splitters, a phase shift between them
and one in front. N (N - 1) / 2 of them in a rectangle of N columns are any unitary matrix. A real
matrix is two meshes with a column of amplitudes between them, by its singular values:

```python
import jax

from jaxeff.nn import small_classifier
from jaxeff.noise import noisy
from jaxeff.photonics import InterferometerMesh

f, params, (x, y) = small_classifier(4)
mesh = noisy(f, {"fc*": InterferometerMesh(phase=0.02, splitter=0.01)})
logits = mesh(jax.random.key(0), params, x)
```

Sharp edges:
    Interferometers are found one after the other: a side of 128 takes tenths of a second.
    Amplitudes between meshes, losses and crosstalk of heaters are ideal.

Source: Clements et al., "Optimal design for universal multiport interferometers", Optica 3 (2016).
"""

import functools
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from jaxeff import core
from jaxeff.noise.models import Device, DeviceModel, Place, real_dtype

HALF = math.pi / 4
"""Angle of a beam splitter that halves the power."""


class MeshPhases(NamedTuple):
    """Phases of a rectangular mesh of N waveguides, in radians.

    Attributes:
        between: [N (N - 1) / 2], between an interferometer's two splitters; in the order in which
            light passes them.
        front: The same in front of an interferometer, in its upper waveguide.
        output: [N], behind the mesh.
    """

    between: Float[Array, " interferometers"]
    front: Float[Array, " interferometers"]
    output: Float[Array, " waveguides"]


@jax.jit
def mesh_phases(unitary: Complex[Array, "n n"]) -> MeshPhases:
    """Finds the phases of the mesh that computes a unitary matrix.

    Entries below the diagonal are nulled one after the other, along diagonals, from the right and
    from the left in turn; what was multiplied from the left is then moved through the phases that
    remain (Clements et al., 2016).

    ```python
    import jax.numpy as jnp

    from jaxeff.photonics import mesh_matrix, mesh_phases

    swap = jnp.eye(3)[::-1]
    assert jnp.allclose(mesh_matrix(mesh_phases(swap)).real, swap, atol=1e-5)
    ```

    Args:
        unitary: A unitary matrix; a real orthogonal one is one.

    Returns:
        Its phases, of which `mesh_matrix` makes it again but for rounding.

    Raises:
        ValueError: It isn't square.
    """
    if jnp.ndim(unitary) != 2 or unitary.shape[0] != unitary.shape[1]:
        raise ValueError(f"mesh_phases: a mesh is a square matrix, not {jnp.shape(unitary)}.")
    plan = _plan(len(unitary))
    zeros = jnp.zeros(len(plan.order), jnp.float32)
    matrix, phases = jnp.asarray(unitary, jnp.complex64), (zeros, zeros)
    # A mesh of one waveguide has no interferometer, and nothing to look up.
    if len(plan.order):
        null = functools.partial(_null, plan)
        matrix, phases = jax.lax.fori_loop(0, len(plan.order), null, (matrix, phases))
    between, front = phases
    output = jnp.angle(jnp.diagonal(matrix))
    if len(plan.left):
        through = functools.partial(_through, plan, between)
        output, front = jax.lax.fori_loop(0, len(plan.left), through, (output, front))
    order = jnp.asarray(plan.order, jnp.int32)
    return MeshPhases(between[order], front[order], output)


def _null(
    plan: "_MeshPlan", step: Array, carry: tuple[Array, tuple[Array, Array]]
) -> tuple[Array, tuple[Array, Array]]:
    """Multiplies a matrix by the interferometer that nulls one entry, and keeps its phases."""
    matrix, (between, front) = carry
    row, column, upper, from_left = (jnp.asarray(one)[step] for one in plan.nulled)
    # From the left two rows are mixed, from the right two columns.
    above, here = matrix[upper, column], matrix[upper + 1, column]
    first, second = matrix[row, upper], matrix[row, upper + 1]
    angle = jnp.where(
        from_left,
        2 * jnp.arctan2(jnp.abs(above), jnp.abs(here)),
        2 * jnp.arctan2(jnp.abs(second), jnp.abs(first)),
    )
    shift = jnp.where(
        from_left,
        jnp.angle(here) - jnp.angle(above),
        jnp.angle(first) - jnp.angle(second) + math.pi,
    )
    mixing = _interferometer(angle, shift)
    rows = jax.lax.dynamic_slice_in_dim(matrix, upper, 2, 0)
    columns = jax.lax.dynamic_slice_in_dim(matrix, upper, 2, 1)
    matrix = jnp.where(
        from_left,
        jax.lax.dynamic_update_slice_in_dim(matrix, mixing @ rows, upper, 0),
        jax.lax.dynamic_update_slice_in_dim(matrix, columns @ mixing.conj().T, upper, 1),
    )
    return matrix, (between.at[step].set(angle), front.at[step].set(shift))


def _through(
    plan: "_MeshPlan", between: Array, step: Array, carry: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Moves an interferometer from behind the remaining phases to in front of them.

    M(angle, shift)^-1 D is D' M(angle, shift'); what was multiplied last is moved first.
    """
    output, front = carry
    index = jnp.asarray(plan.left)[len(plan.left) - 1 - step]
    upper = jnp.asarray(plan.nulled.upper)[index]
    first, second = output[upper], output[upper + 1]
    behind = second - between[index] + math.pi
    output = output.at[upper].set(behind - front[index]).at[upper + 1].set(behind)
    return output, front.at[index].set(first - second)


@jax.jit
def mesh_matrix(
    phases: MeshPhases, splitters: Float[Array, "interferometers 2"] | None = None
) -> Complex[Array, "n n"]:
    """Computes the matrix of a mesh.

    Args:
        phases: Phases of its interferometers.
        splitters: Errors of the angles of each one's first and second beam splitter, in radians:
            0 halves the power.

    Returns:
        What the mesh multiplies amplitudes by; unitary, whatever the errors are.
    """
    n = len(phases.output)
    plan = _plan(n)
    errors = jnp.zeros((len(phases.between), 2)) if splitters is None else splitters
    mixing = _interferometer(phases.between, phases.front, errors[:, 0], errors[:, 1])
    mixing = jnp.moveaxis(mixing, -1, 0)

    def column(amplitudes: Array, place: tuple[Array, Array]) -> tuple[Array, None]:
        # All interferometers of a column at once: each waveguide has a partner, or passes.
        at, upper = place
        lower = jnp.where(at >= 0, upper + 1, upper)
        here = mixing[at]
        mixed = jnp.einsum(
            "pij,pjk->pik", here, jnp.stack([amplitudes[upper], amplitudes[lower]], 1)
        )
        # An empty place writes to no row.
        upper, lower = (jnp.where(at >= 0, one, n) for one in (upper, lower))
        amplitudes = amplitudes.at[upper].set(mixed[:, 0], mode="drop")
        return amplitudes.at[lower].set(mixed[:, 1], mode="drop"), None

    identity = jnp.eye(n, dtype=jnp.complex64)
    if not len(plan.order):
        return _turned(phases.output)[:, None] * identity
    behind, _ = jax.lax.scan(column, identity, (jnp.asarray(plan.at), jnp.asarray(plan.upper)))
    return _turned(phases.output)[:, None] * behind


@core.register_setting
class InterferometerMesh(DeviceModel):
    """Weights as two meshes of interferometers, whose phases and beam splitters are off.

    A weight array, of which all axes but the last are counted together, is U S V^T by its singular
    values: a mesh for U, one for V, and ideal amplitudes S between them. What detectors read is the
    real part of what is left of it. Errors are the same in every call, and a gradient passes them
    straight through, as if there were none.

    Source: Fang et al., "Design of optical neural networks with component imprecisions", Optics
    Express 27 (2019).

    Attributes:
        phase: Standard deviation of all phases, in radians.
        splitter: Standard deviation of the angles of all beam splitters, in radians.
        device: The device, an integer; see `jaxeff.noise.models`.

    Raises:
        TypeError: `device` isn't an integer.
        ValueError: A number is negative, NaN or infinite.
    """

    phase: core.NonNegative = 0.0
    splitter: core.NonNegative = 0.0
    device: Device = 0

    at: Place = core.static("weights")

    levels: ClassVar[tuple[str, ...]] = ("phase", "splitter")

    def _at_site(self, site: int, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Computes weights by the meshes of one site."""
        dtype = real_dtype(x)
        # Straight through: what errors do to a weight is a constant for its gradient.
        weights = jax.lax.stop_gradient(x.astype(jnp.float32)).reshape(-1, jnp.shape(x)[-1])
        left, amplitudes, right = jnp.linalg.svd(weights, full_matrices=False)
        sides = [_completed(left), _completed(right.T)]
        keys = jax.random.split(self._device_key(site), 2)
        count = len(amplitudes)
        (u, u_off), (v, v_off) = (
            [one[:, :count] for one in self._meshes(key, side)]
            for key, side in zip(keys, sides, strict=True)
        )
        between = amplitudes.astype(jnp.complex64)[None]
        # How far meshes take weights, not what they are: without errors weights keep their bits.
        off = (u_off * between) @ v_off.conj().T - (u * between) @ v.conj().T
        return x + off.real.reshape(jnp.shape(x)).astype(dtype)

    def _meshes(self, key: Array, unitary: Array) -> tuple[Array, Array]:
        """Computes the matrix of a mesh without errors, and with them."""
        phases = mesh_phases(unitary)
        *drawn, splitters = jax.random.split(key, 4)
        off = MeshPhases(
            *(
                one + self.phase * jax.random.normal(each, one.shape)
                for each, one in zip(drawn, phases, strict=True)
            )
        )
        angles = self.splitter * jax.random.normal(splitters, (*phases.between.shape, 2))
        return mesh_matrix(phases), mesh_matrix(off, angles)


def _completed(columns: Float[Array, "n k"]) -> Float[Array, "n n"]:
    """Completes orthonormal columns to an orthogonal matrix."""
    n, k = columns.shape
    if n == k:
        return columns
    # Of the whole Q, the first columns are those given but for their signs.
    q, r = jnp.linalg.qr(columns, mode="complete")
    return q.at[:, :k].multiply(jnp.sign(jnp.diagonal(r))[None])


def _interferometer(
    between: Array, front: Array, first: Array | float = 0.0, second: Array | float = 0.0
) -> Array:
    """Computes the matrices [2, 2, ...] of interferometers; errors are of the splitters' angles."""

    def splitter(error: Array | float) -> tuple[Array, Array]:
        cosine, sine = jnp.cos(HALF + error), jnp.sin(HALF + error)
        return jax.lax.complex(cosine, jnp.zeros_like(cosine)), jax.lax.complex(
            jnp.zeros_like(sine), sine
        )

    (c1, s1), (c2, s2) = splitter(first), splitter(second)
    inner, outer = _turned(between), _turned(front)
    # Splitter, phase, splitter, phase: each splitter is [[c, s], [s, c]].
    rows = (
        ((c2 * inner * c1 + s2 * s1) * outer, c2 * inner * s1 + s2 * c1),
        ((s2 * inner * c1 + c2 * s1) * outer, s2 * inner * s1 + c2 * c1),
    )
    shape = jnp.broadcast_shapes(*(jnp.shape(entry) for row in rows for entry in row))
    return jnp.stack([jnp.stack([jnp.broadcast_to(entry, shape) for entry in row]) for row in rows])


def _turned(angle: Array) -> Array:
    """Computes exp(i angle)."""
    return jax.lax.complex(jnp.cos(angle), jnp.sin(angle))


class _Nulled(NamedTuple):
    """What each step nulls, in order: the entry, the upper one of what is mixed, and the side."""

    row: np.ndarray
    column: np.ndarray
    upper: np.ndarray
    from_left: np.ndarray


class _MeshPlan(NamedTuple):
    """Where the interferometers of a mesh of one size are."""

    nulled: _Nulled
    left: np.ndarray  # steps from the left, in their order
    order: np.ndarray  # steps in the order in which light passes
    at: np.ndarray  # [columns, places] of that order, -1 where there is none
    upper: np.ndarray  # [columns, places] waveguides


@functools.cache
def _plan(n: int) -> _MeshPlan:
    """Plans the decomposition of a unitary matrix of n by n, and the columns of its mesh."""
    steps = []
    for i in range(n - 1):
        for j in range(i + 1):
            if i % 2 == 0:
                steps.append((n - 1 - j, i - j, i - j, False))
            else:
                steps.append((n - 1 - i + j, j, n - 2 - i + j, True))
    nulled = _Nulled(*np.array(steps, np.int32).reshape(-1, 4).T)
    left = np.flatnonzero(nulled.from_left)
    # Light passes what was multiplied from the right first, then the others from the last one.
    order = np.concatenate([np.flatnonzero(nulled.from_left == 0), left[::-1]])
    depth, columns = np.zeros(n, int), []
    for step in order:
        upper = nulled.upper[step]
        column = depth[upper : upper + 2].max()
        depth[upper : upper + 2] = column + 1
        columns.append(column)
    width = max(1, n // 2)
    at = np.full((max(columns, default=-1) + 1, width), -1, np.int32)
    uppers = np.zeros_like(at)
    filled = np.zeros(len(at), int)
    for place, (column, step) in enumerate(zip(columns, order, strict=True)):
        at[column, filled[column]] = place
        uppers[column, filled[column]] = nulled.upper[step]
        filled[column] += 1
    return _MeshPlan(nulled, left, order, at, uppers)

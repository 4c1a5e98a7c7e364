"""The singular values of bidiagonal matrices: implicit QR, by LAPACK's rules (bdsqr)."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import CodeBuilder, View
from jaxeff_export.importer.linalg._rotations import Sides, rotation
from jaxeff_export.importer.linalg._sweeps import choose_shift, solve_pair, sweep, sweep_unshifted


def make_upper(code: CodeBuilder, d: View, e: View, sides: Sides) -> None:
    """Turns a lower bidiagonal matrix into an upper one by rotations from the left."""
    c, s, r = (code.local(d.dtype) for _ in range(3))
    with code.loop(sides.n - 1) as k:
        rotation(code, d[k], e[k], c, s, r)
        d[k] = r[()]
        e[k] = s[()] * d[k + 1]
        d[k + 1] = c[()] * d[k + 1]
        sides.rotate(sides.left, k, k + 1, c, s)


def diagonalize(code: CodeBuilder, d: View, e: View, sides: Sides, info: View) -> None:
    """Finds the singular values of an upper bidiagonal matrix, descending, and their vectors.

    ``info`` becomes 1 if the iteration does not converge, else 0.
    """
    n = sides.n
    iteration = _Iteration(code, d, e, sides)
    bottom, budget = iteration.bottom, iteration.budget
    with code.loop_while(tirx.And(bottom[()] > 0, budget[()] > 0)):
        iteration.find_block()
        length, top = iteration.length, iteration.top
        # Two rows have a solution in closed form; one row is a singular value already.
        with code.when(length[()] == 1):
            solve_pair(code, d, e, sides, top[()])
        with code.when(length[()] <= 1):
            bottom[()] = top[()] - 1
        with code.when(length[()] > 1):
            iteration.choose_direction()
            head, tail, final = iteration.ends()
            iteration.split(head, tail, final)
            # A new zero splits the block: its lower part is found first.
            with code.when(iteration.found[()] == 0):
                iteration.sweep(head, tail, final)
    info[()] = tirx.Cast("int32", budget[()] <= 0)
    # Comparisons with NaN are false, so NaN looks converged and has to be reported here.
    with code.loop(n) as k, code.when(tirx.isnan(d[k])):
        info[()] = tirx.const(1, "int32")
    _sort(code, d, sides)


class _Iteration:
    """The implicit QR iteration on one bidiagonal matrix: what sweeps leave for the next.

    The rows `top` to `bottom` are the block at work: the last whose off-diagonal has no zero.
    Sweeps go down (`step` is 1) or up (-1) through it. `found` says whether a zero split the block,
    and `budget` how many rotations are left.
    """

    def __init__(self, code: CodeBuilder, d: View, e: View, sides: Sides) -> None:
        dtype, n = d.dtype, sides.n
        self.code, self.d, self.e, self.sides = code, d, e, sides
        self.epsilon, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
        # bdsqr's relative tolerance for singular values; eps is half the spacing of floats at one.
        self.tolerance = max(10.0, min(100.0, self.epsilon**-0.125)) * self.epsilon
        self.zero, self.relative = tirx.const(0, dtype), tirx.const(self.tolerance, dtype)
        self.none, self.one = tirx.const(0, "int64"), tirx.const(1, "int64")
        self.threshold, self.mu, self.least, self.largest, self.shift = (
            code.local(dtype) for _ in range(5)
        )
        self.top, self.bottom, self.step, self.length, self.budget, self.found = (
            code.local("int64") for _ in range(6)
        )
        self.last_top, self.last_bottom = code.local("int64"), code.local("int64")
        # bdsqr's floor, MAXITR * n^2 times the least normal number: the threshold can't underflow.
        self._set_threshold(tirx.const(6.0 * n * n * tiny, dtype))
        self.bottom[()] = tirx.const(n - 1, "int64")
        # No block yet: the first one chooses its direction.
        self.last_top[()] = self.none - 1
        self.last_bottom[()] = self.none - 1
        self.step[()] = self.one
        # A sweep costs its length; bdsqr gives up after MAXITR = 6 times n^2 in all.
        self.budget[()] = tirx.const(6 * n * n + 1, "int64")

    def _set_threshold(self, floor: Expr) -> None:
        """Sets below what an off-diagonal is zero: the tolerance times the least value's bound."""
        code, d, e, n = self.code, self.d, self.e, self.sides.n
        # min(mu) / sqrt(n) bounds the least singular value from below: 1 / min(mu) is a norm of
        # the inverse (Demmel and Kahan, SIAM J. Sci. Stat. Comput. 11(5), 1990).
        self._start_bound(d[0])
        with code.loop(n, 1) as k, code.when(self.least[()] > self.zero):
            self._bound(k, e[k - 1])
        self.threshold[()] = tirx.max(
            self.relative * self.least[()] / tirx.const(n**0.5, d.dtype), floor
        )

    def _start_bound(self, first: Expr) -> None:
        self.mu[()] = tirx.abs(first)
        self.least[()] = self.mu[()]

    def _bound(self, k: Expr, beside: Expr) -> None:
        """Extends the lower bound of the least singular value to row ``k``."""
        mu, least = self.mu, self.least
        mu[()] = tirx.abs(self.d[k]) * (mu[()] / (mu[()] + tirx.abs(beside)))
        least[()] = tirx.min(least[()], mu[()])

    def find_block(self) -> None:
        """Finds the block above `bottom`, up to the first negligible off-diagonal; zeroes that."""
        # Rows after `bottom` have converged.
        code, d, e, top, largest = self.code, self.d, self.e, self.top, self.largest
        top[()] = self.bottom[()]
        largest[()] = tirx.abs(d[self.bottom[()]])
        linked = tirx.abs(e[top[()] - 1]) > self.threshold[()]
        # A choice instead of a conjunction: above the first row there is no entry to read.
        with code.loop_while(tirx.if_then_else(top[()] > 0, linked, tirx.const(False, "bool"))):
            top[()] = top[()] - 1
            largest[()] = tirx.max(largest[()], tirx.abs(d[top[()]]))
            largest[()] = tirx.max(largest[()], tirx.abs(e[top[()]]))
        with code.when(top[()] > 0):
            e[top[()] - 1] = self.zero
        self.length[()] = self.bottom[()] - top[()]

    def choose_direction(self) -> None:
        """Chooses the direction for a new block; a known one keeps its own."""
        code, d, top, bottom = self.code, self.d, self.top, self.bottom
        new = tirx.Or(top[()] > self.last_bottom[()], bottom[()] < self.last_top[()])
        with code.when(new):
            # Chase the bulge from the larger end: values converge at the smaller.
            down = tirx.abs(d[top[()]]) >= tirx.abs(d[bottom[()]])
            self.step[()] = tirx.Select(down, self.one, self.none - 1)

    def ends(self) -> tuple[Expr, Expr, Expr]:
        """Computes the rows where sweeps begin and end, and the last off-diagonal on the way."""
        code, going = self.code, self.step[()]
        head = code.let(tirx.Select(going > 0, self.top[()], self.bottom[()]))
        tail = code.let(head + self.length[()] * going)
        return head, tail, tirx.min(tail - going, tail)

    def split(self, head: Expr, tail: Expr, final: Expr) -> None:
        """Zeroes an off-diagonal that no singular value depends on, and sets `found`."""
        # Demmel and Kahan's criterion, in the direction of the chase: an off-diagonal below the
        # tolerance times mu changes no singular value by more than the tolerance.
        code, d, e, found, going = self.code, self.d, self.e, self.found, self.step[()]
        found[()] = self.none
        with code.when(tirx.abs(e[final]) <= self.relative * tirx.abs(d[tail])):
            e[final] = self.zero
            found[()] = self.one
        self._start_bound(d[head])
        with code.loop(self.length[()]) as t, code.when(found[()] == 0):
            k = head + t * going
            link = tirx.min(k, k + going)
            with code.when(tirx.abs(e[link]) <= self.relative * self.mu[()]):
                e[link] = self.zero
                found[()] = self.one
            with code.when(found[()] == 0):
                self._bound(k + going, e[link])

    def sweep(self, head: Expr, tail: Expr, final: Expr) -> None:
        """Does one step of QR on the block, with a shift where that costs no accuracy."""
        code, d, e, shift, going = self.code, self.d, self.e, self.shift, self.step[()]
        length, dtype = self.length, self.d.dtype
        self.last_top[()] = self.top[()]
        self.last_bottom[()] = self.bottom[()]
        self.budget[()] = self.budget[()] - length[()]
        choose_shift(code, d, e, head, tail, going, shift)
        # A shift would cost the least values of such a block their relative accuracy.
        ratio = tirx.const(self.sides.n * self.tolerance, dtype) * (
            self.least[()] / self.largest[()]
        )
        bound = max(self.epsilon, 0.01 * self.tolerance)
        with code.when(ratio <= tirx.const(bound, dtype)):
            shift[()] = self.zero
        with code.when(shift[()] == self.zero):
            sweep_unshifted(code, d, e, self.sides, head, length[()], going)
        with code.when(shift[()] != self.zero):
            sweep(code, d, e, self.sides, head, length[()], going, shift[()])
        with code.when(tirx.abs(e[final]) <= self.threshold[()]):
            e[final] = self.zero


def _sort(code: CodeBuilder, d: View, sides: Sides) -> None:
    """Makes singular values positive, then descending."""
    n = sides.n
    least = code.local("int64")
    # LAPACK's convention: bdsqr negates right vectors, bdsdc, for a single row, the left one.
    flipped = sides.left if n == 1 else sides.right
    with code.loop(n) as k, code.when(d[k] < tirx.const(0, d.dtype)):
        d[k] = -d[k]
        if sides.wanted:
            with code.loop(n) as i:
                flipped[i, k] = -flipped[i, k]
    with code.loop(n) as back:
        # bdsqr's selection sort: among equal values, another sort would order vectors otherwise.
        end = n - 1 - back
        least[()] = tirx.const(0, "int64")
        with code.loop(end + 1) as j, code.when(d[j] <= d[least[()]]):
            least[()] = j
        with code.when(least[()] != end):
            code.exchange(d.at(end), d.at(least[()]))
            for side in (sides.left, sides.right) if sides.wanted else ():
                code.swap(side.T.at(end), side.T.at(least[()]), n)

# %% [markdown]
# # Ways to a gradient
#
# A pendulum that hits a wall, written with a constraint (Hessenberg index 2). How does the integral
# of the force in its rod depend on its length, on gravity and on the wall? There are many ways to
# that gradient; that independent ones agree is the best test of all of them.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus import continuous


def flow(now, p):
    x, y, u, w = (now.x[k] for k in "xyuw")
    tension, drift = now.z["tension"], now.z["drift"]
    return {
        "x": u - x * drift, "y": w - y * drift,
        "u": -x * tension, "w": -p["g"] - y * tension,
    }  # fmt: skip


def constraint(now, p):
    x, y, u, w = (now.x[k] for k in "xyuw")
    return {"length": (x * x + y * y - p["L"] ** 2) / 2, "speed": x * u + y * w}


def bounced(now, p):
    return now.replace(x={**now.x, "u": -p["e"] * now.x["u"], "w": -p["e"] * now.x["w"]})


wall = saltus.Event(
    "wall", lambda now, p: now.x["x"] - p["wall"], direction="rising", reset=bounced
)
pendulum = saltus.HybridSystem(
    flow, constraint=constraint, index=2, events=[wall],
    rate=lambda now, p: {"force": now.z["tension"]},
)  # fmt: skip


def solve(p):
    angle, spin = -0.9, 0.3
    start = saltus.Instant(
        t=0.0,
        x={
            "x": p["L"] * jnp.sin(angle), "y": -p["L"] * jnp.cos(angle),
            "u": p["L"] * spin * jnp.cos(angle), "w": p["L"] * spin * jnp.sin(angle),
        },
        z={"tension": 9.0, "drift": 0.0},
    )  # fmt: skip
    return saltus.solve(pendulum, start, p, 4.0, method=saltus.Radau5(rtol=1e-9, atol=1e-9))


def force(p):
    return solve(p).integral["force"]


p = {"L": 1.2, "g": 9.81, "e": 0.85, "wall": 0.4}

# %% [markdown]
# The adjoint sweep (`jax.grad`) goes back over the steps that were taken; the continuous adjoint
# integrates the adjoint equations of the papers, with their jumps at the wall.

# %%
by_steps = jax.grad(force)(p)
value, by_equations = continuous.adjoint(force, p)
for name in p:
    print(f"d force / d {name:5} {by_steps[name]:14.9f} {by_equations[name]:14.9f}")
exact = {"L": -35.466475538047, "g": 4.1397581409525, "e": 16.530032913236, "wall": 4.8718582072805}
assert abs(float(value) - 40.288331394966) < 1e-6
for name, number in exact.items():
    assert abs(float(by_steps[name]) / number - 1) < 1e-6
    assert abs(float(by_equations[name]) / number - 1) < 1e-6

# %% [markdown]
# The adjoint variables over time: lambda says how much a push on a state is worth, mu belongs to
# the constraints. They jump at the wall. The papers choose lambda so that it does not feel the
# constraint: `f_z^T lambda + g_z = 0` at all times.

# %%
sol = solve(p)
found = continuous.adjoints(lambda sol: sol.integral["force"], sol)
states = jax.vmap(lambda t: sol.at(t).x)(found.t[1:-1])
along = states["x"] * found.lam["u"][1:-1] + states["y"] * found.lam["w"][1:-1]  # -f_z^T lambda
inside = ~(np.asarray(found.jump)[1:-1] | np.asarray(found.jump)[:-2])
assert np.allclose(along[inside], 1.0, atol=1e-6)  # the rate of the integral, by the tension

# %% [markdown]
# And how an event acts on small changes: the saltation matrix of the first hit.

# %%
print(saltus.saltations(sol)[0])

figure = found.plot()
figure.suptitle("Adjoints of the integrated force in the rod")
figure.savefig("ways_to_a_gradient.png")

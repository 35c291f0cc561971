# %% [markdown]
# # A spring that breaks, and a fit through the break
#
# The second example of Andersson and Goppert (2024). A mass hangs on a spring that breaks for good
# when it is stretched to x = 2:
#
#     x' = v,   m v' + c v = -k x + d   (intact),   m v' + c v = 0   (broken)

# %%
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

import saltus
from saltus import Exit, Mode
from saltus.plot import COLOURS, pyplot


def intact(now, p):
    x, v = now.x["x"], now.x["v"]
    return {"x": v, "v": (-p["k"] * x + now.u - p["c"] * v) / p["m"]}


def broken(now, p):
    return {"x": now.x["v"], "v": -p["c"] * now.x["v"] / p["m"]}


stretched = Exit(lambda now, p: now.x["x"] - 2.0, to="broken", direction="rising", name="break")
spring = saltus.automaton(
    {"intact": Mode(intact, exits=[stretched]), "broken": Mode(broken)},
    rate=lambda now, p: now.x["x"] ** 2,
    inputs=lambda p: saltus.Steps(p["times"], p["d"]),
    units={"t": "s", "x": "m", "v": "m/s", "integral": "m^2 s"},
)

# %% [markdown]
# The disturbance `d` is an input: `inputs` makes a signal out of the parameters, and the flow reads
# its current value as `now.u`. For a start it is 0 all the time.

# %%
p = {"m": 1.0, "k": 2.0, "c": 0.1, "times": jnp.array([0.0]), "d": jnp.array([0.0])}


def solve(p, ts=None):
    start = saltus.Instant(t=0.0, x={"x": -1.0, "v": -5.0}, mode="intact")
    method = saltus.Tsit5(rtol=1e-10, atol=1e-10)
    return saltus.solve(spring, start, p, 5.0, ts=ts, method=method)


sol = solve(p)
print(sol)
print(sol.events)


# %%
def facts(p):
    sol = solve(p)
    broke = sol.events.of("break")
    return jnp.stack([broke.t[0], broke.before.x["v"][0], sol.final.x["x"], sol.integral])


jacobian = jax.jacfwd(facts)(p)
reference = {  # t_break, v_break, x(5), integral of x^2
    "m": [1.0484865864392, 1.3453394071577, 1.0202065256891, -12.11382885352],
    "k": [-0.55897767013935, -0.27591471111106, 0.93999497665879, 33.451050322581],
    "c": [0.69468753839457, -7.935099849356, -29.001964790067, -547.88271791642],
}
for name, exact in reference.items():
    print(f"d/d{name}", np.asarray(jacobian[name]))
    assert np.allclose(jacobian[name], exact, rtol=1e-7)

# %% [markdown]
# Now the fit of the paper: find m, k and c from noisy measurements of x, under a known disturbance.
# (Without one, only the ratios k/m and c/m could be found.) Whether and when the spring breaks
# depends on the parameters, and the exact Jacobian knows it.

# %%
ts = jnp.linspace(0.1, 5.0, 50)
known = {"times": jnp.array([0.0, 0.4, 0.8, 1.2, 1.6, 2.0]), "d": jnp.array([3, -2, 4, -3, 2, 0.0])}
truth = np.array([1.0, 2.0, 0.1])
noise = 0.05 * jax.random.normal(jax.random.key(7), ts.shape)


def positions(mkc):
    return solve({"m": mkc[0], "k": mkc[1], "c": mkc[2], **known}, ts).y["x"]


measured = positions(truth) + noise
residuals = jax.jit(lambda mkc: positions(mkc) - measured)
slopes = jax.jit(jax.jacfwd(residuals))

guess = np.array([1.3, 1.5, 0.3])
fit = least_squares(residuals, guess, jac=slopes, x_scale=truth)
covariance = np.linalg.inv(fit.jac.T @ fit.jac) * 0.05**2
for name, value, sigma in zip("mkc", fit.x, np.sqrt(np.diag(covariance)), strict=True):
    print(f"{name} = {value:.3f} +- {sigma:.3f}")
assert fit.success
assert np.all(np.abs(fit.x - truth) < 3 * np.sqrt(np.diag(covariance)))

# %%
plt = pyplot()
figure, axes = plt.subplots(2, 1, figsize=(7.2, 5.0), sharex=True, height_ratios=[3, 1])
fine = np.linspace(0.0, 5.0, 500)
for values, colour, text in ((guess, COLOURS[3], "first guess"), (fit.x, COLOURS[0], "fit")):
    one = solve({"m": values[0], "k": values[1], "c": values[2], **known})
    axes[0].plot(fine, one(fine)["x"], color=colour, label=text)
    for t in one.events.t:
        axes[0].axvline(t, color=colour, lw=1.0, ls=":", label=f"breaks at {t:.2f} s")
axes[0].plot(ts, measured, ".", color="#2b3137", ms=5, label="measured")
axes[0].axhline(2.0, color=COLOURS[1], lw=0.9, ls="--", label="breaking point")
axes[0].set(ylabel="x [m]", title="A spring that breaks, fitted through the break")
axes[0].legend()
axes[1].step([*known["times"], 5.0], [*known["d"], 0.0], where="post", color=COLOURS[5])
axes[1].set(ylabel="d [N]", xlabel="t [s]")
figure.savefig("breaking_spring.png")

# %% [markdown]
# # A bridge rectifier: Kirchhoff's laws as they are
#
# An alternating voltage u(t) behind a resistance, four diodes, a capacitor that smooths, and a
# load. The voltage of the capacitor is the only differential state. The two nodes a and b between
# source and diodes have no capacitance: their voltages are whatever makes the currents balance.
# That is a DAE of index 1, nonlinear, because a diode's current grows exponentially with its
# voltage.

# %%
import jax
import jax.numpy as jnp
import numpy as np

import saltus
from saltus.plot import COLOURS, pyplot


def diode(v, p):
    """Shockley's law, and a little leakage, without which an idle bridge would float freely."""
    return p["Is"] * jnp.expm1(v / p["Vt"]) + v / 1e6


def bridge(now, p):
    """The currents: out of the source, through the four diodes, into the load's side."""
    u = p["U"] * jnp.sin(2 * jnp.pi * p["f"] * now.t)
    a, b, v = now.z["a"], now.z["b"], now.x["v"]
    source = (u - (a - b)) / p["Rs"]
    up_a, up_b, down_a, down_b = (diode(w, p) for w in (a - v, b - v, -a, -b))
    return {
        "a": source - up_a + down_a,
        "b": -source - up_b + down_b,
        "load": up_a + up_b - v / p["R"],
    }


# %% [markdown]
# The names of the equations (`"a"`, `"b"`) are those that error messages would use. Two events
# watch the capacitor: its current is zero where its voltage has a peak or a trough. That current
# depends on the algebraic states; guards may read them.

# %%
charge = lambda now, p: bridge(now, p)["load"]
rectifier = saltus.HybridSystem(
    flow=lambda now, p: {"v": bridge(now, p)["load"] / p["C"]},
    constraint=lambda now, p: {node: bridge(now, p)[node] for node in ("a", "b")},
    events=[
        saltus.Event("peak", guard=charge, direction="falling"),
        saltus.Event("trough", guard=charge, direction="rising"),
    ],
    output=lambda now, p: {
        "u": p["U"] * jnp.sin(2 * jnp.pi * p["f"] * now.t),
        "v": now.x["v"],
        "i": (p["U"] * jnp.sin(2 * jnp.pi * p["f"] * now.t) - now.z["a"] + now.z["b"]) / p["Rs"],
    },
    units={"t": "s", "u": "V", "v": "V", "i": "A"},
)
p = {"U": 12.0, "f": 50.0, "Rs": 0.5, "R": 100.0, "C": 1e-3, "Is": 1e-9, "Vt": 0.05}


def solve(p, end=0.1):
    start = saltus.Instant(t=0.0, x={"v": 5.0}, z={"a": 2.5, "b": 2.5})
    return saltus.solve(rectifier, start, p, end, method=saltus.Radau5(rtol=1e-8, atol=1e-8))


sol = solve(p)
print(sol)
print(sol.events.of("peak").before.x["v"])

# %% [markdown]
# **Ripple**: the last trough to the last peak. A rule of thumb says load current / (2 f C).


# %%
def ripple(C):
    events = solve({**p, "C": C}).events
    return events.of("peak").after.x["v"][-1] - events.of("trough").after.x["v"][-1]


value, slope = jax.value_and_grad(ripple)(p["C"])
thumb = float(sol.final.x["v"]) / p["R"] / (2 * p["f"] * p["C"])
print(f"ripple {value:.4f} V (rule of thumb {thumb:.4f} V), d/dC = {slope:.1f} V/F")
step = 1e-3 * p["C"]
difference = (ripple(p["C"] + step) - ripple(p["C"] - step)) / (2 * step)
print(f"by differences {difference:.1f} V/F")
assert np.isclose(slope, difference, rtol=1e-3)
assert 0.7 * thumb < value < thumb

# %% [markdown]
# **Design**: which capacitor leaves a ripple of 0.25 V? Newton's method between the logarithms of C
# and of the ripple, with exact derivatives through the diodes and the moments of peak and trough.

# %%
C = p["C"]
for _ in range(4):
    value, slope = jax.value_and_grad(ripple)(C)
    print(f"C = {1e3 * C:.6f} mF, ripple {value:.9f} V")
    C = C * (0.25 / value) ** (value / (C * slope))
assert abs(ripple(C) - 0.25) < 1e-6

# %%
plt = pyplot()
figure, axes = plt.subplots(3, 1, figsize=(7.6, 7.2), height_ratios=[3, 2, 3])
ts = np.linspace(0.0, 0.06, 1500)
course = sol(ts)
axes[0].plot(1e3 * ts, np.abs(course["u"]), color="#8a94a0", lw=1.0, label="|u|")
axes[0].plot(1e3 * ts, course["v"], color=COLOURS[0], label="capacitor, 1 mF")
axes[0].plot(1e3 * ts, solve({**p, "C": C})(ts)["v"], color=COLOURS[2], label=f"{1e3 * C:.2f} mF")
for name, marker in (("peak", "^"), ("trough", "v")):
    events = sol.events.of(name)
    seen = np.asarray(events.t) <= 0.06
    axes[0].plot(
        1e3 * events.t[seen], events.after.x["v"][seen], marker, color=COLOURS[1], ms=4, label=name
    )
axes[0].set(ylabel="voltage [V]", title="A bridge rectifier")
axes[0].set_ylim(0.0, 16.5)
axes[0].legend(loc="upper left", ncols=5)
axes[1].plot(1e3 * ts, course["i"], color=COLOURS[4])
axes[1].set(ylabel="source current [A]", xlabel="t [ms]")
sizes = np.logspace(-3.6, -2.2, 8)
ripples, slopes = np.array([jax.value_and_grad(ripple)(c) for c in sizes]).T
axes[2].loglog(1e3 * sizes, ripples, "o", color=COLOURS[0], ms=4, label="ripple")
for c, r, s in zip(sizes, ripples, slopes, strict=True):
    line = np.array([0.8, 1.25])
    axes[2].loglog(1e3 * c * line, r * line ** (c * s / r), color=COLOURS[0], lw=1.2)
axes[2].axhline(0.25, color=COLOURS[2], lw=1.0, ls="--", label="wanted")
axes[2].set(xlabel="capacitance [mF]", ylabel="ripple [V]", title="Ripple, with its tangents")
axes[2].set_xticks([0.3, 1.0, 3.0], ["0.3", "1", "3"])
axes[2].set_xticks([], minor=True)
axes[2].set_yticks([0.1, 0.25, 1.0], ["0.1", "0.25", "1"])
axes[2].legend()
figure.savefig("rectifier.png")

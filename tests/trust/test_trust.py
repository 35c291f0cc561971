"""Certificates: what they measure, how far they reach, and that they say so when nothing exists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import saltus
from problems import problem
from saltus import Event, HybridSystem, Instant, solve
from saltus.trust import REASONS, certify

G = 9.81
P = {"h": 1.0, "e": 0.7}


def bounced(now, p):
    return now.replace(x={"h": now.x["h"], "v": -p["e"] * now.x["v"]})


BALL = HybridSystem(
    flow=lambda now, p: {"h": now.x["v"], "v": -G},
    events=[Event("bounce", guard=lambda now, p: now.x["h"], reset=bounced)],
)


def drop(p, t1=2.0, **options):
    return solve(BALL, Instant(t=0.0, x={"h": p["h"], "v": 0.0}), p, t1, **options)


@pytest.fixture(scope="module")
def certificate():
    return drop(P).certificate


# -- what is measured -----------------------------------------------------------------------------


def test_a_bouncing_ball_is_trusted_and_its_events_are_listed(certificate):
    assert certificate.verdict == "TRUSTED" and certificate.reasons == ()
    assert certificate.signature == ("bounce",) * 4
    for word in ("TRUSTED", "bounce", "transversality", "noise floor"):
        assert word in repr(certificate)


@pytest.mark.slow
def test_short_hops_are_trusted_while_the_states_are_exact():
    """Steps make no error on parabolas: a speed of 0.1 at the floor is far from grazing."""
    p, count = {"h": 1.0, "e": 0.3}, 4
    stop = lambda p: jnp.sqrt(2 * p["h"] / G) * (1 + 2 * sum(p["e"] ** k for k in range(1, count)))
    end = float(stop(p)) + 3e-3
    last = lambda p: drop(p, t1=end).events.t[count - 1]
    assert drop(p, t1=end).certificate.trusted
    for got, want in zip(*(jax.grad(f)(p).values() for f in (last, stop)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_transversality_is_the_speed_at_the_guard_over_the_largest_it_could_have(certificate):
    """|v| / sqrt(v^2 + 2 g L), with L the greatest height: v^2 = 2 g h0 e^(2k) at bounce k."""
    share = P["e"] ** (2 * np.arange(4))
    np.testing.assert_allclose(
        certificate.events.transversality, np.sqrt(share / (share + 1.0)), rtol=1e-9
    )


def test_the_saltation_norm_is_that_of_the_closed_form(certificate):
    """dx+ = [[-e, 0], [(1 + e) g / v, -e]] dx- for a bounce at speed v."""
    speeds = np.sqrt(2 * G) * P["e"] ** np.arange(4)
    e = P["e"]
    norms = [np.linalg.norm([[-e, 0.0], [(1 + e) * G / v, -e]], 2) for v in speeds]
    np.testing.assert_allclose(certificate.events.saltation, norms, rtol=1e-9)


def test_both_sweeps_agree_and_growth_is_that_of_the_largest_error(certificate):
    assert float(certificate.dot) < 1e-12
    assert 1.0 < float(certificate.growth) < 100.0
    np.testing.assert_allclose(certificate.floor, certificate.growth * np.finfo(float).eps)


def test_distances_in_time_are_those_of_the_log(certificate):
    times = np.asarray(drop(P).events.t)
    np.testing.assert_allclose(certificate.order, np.min(np.diff(times)), rtol=1e-12)
    np.testing.assert_allclose(certificate.end, 2.0 - times[-1], rtol=1e-12)
    assert np.isinf(certificate.saves)


def test_a_miss_is_measured_where_the_guard_turns_around():
    """Thrown up to 0.9, watched at 1: the apex is the closest place."""
    system = HybridSystem(
        flow=lambda now, p: {"x": now.x["v"], "v": -G},
        events=[Event("ceiling", guard=lambda now, p: 1.0 - now.x["x"])],
    )
    speed = np.sqrt(2 * G * 0.9)
    sol = solve(system, Instant(t=0.0, x={"x": 0.0, "v": speed}), None, 0.8)
    cert = sol.certificate
    np.testing.assert_allclose(cert.guards.distance, [0.1], rtol=1e-9)
    assert cert.trusted and "came within 0.1" in repr(cert)


@pytest.mark.slow
def test_certificates_are_arrays_under_jit_and_vmap():
    levels = jax.jit(
        jax.vmap(lambda e: drop({"h": 1.0, "e": e}, max_steps=64, max_events=16).certificate.level)
    )(jnp.array([0.7, 0.75, 0.3]))
    np.testing.assert_array_equal(levels, [0, 0, 2])  # the last one piles up before the end


@pytest.mark.slow
def test_algebraic_equations_are_judged_by_their_condition():
    """0 = g_z z - x with g_z = diag(1, k): its condition number is 1 / k."""
    system = HybridSystem(
        flow=lambda now, p: {"x": -now.z["a"]},
        constraint=lambda now, p: {"one": now.z["a"] - now.x["x"], "two": p * now.z["b"] - 1.0},
    )
    start = Instant(t=0.0, x={"x": 1.0}, z={"a": 1.0, "b": 1.0})
    good = solve(system, start, 0.5, 1.0).certificate
    np.testing.assert_allclose(good.condition, 2.0, rtol=1e-9)
    assert good.trusted and float(good.drift) < 1.0
    bad = solve(system, start, 1e-9, 1.0).certificate
    assert bad.verdict == "DEGRADED" and "ill-conditioned" in bad.reasons[0]


# -- how far it reaches ---------------------------------------------------------------------------


def counted(p):
    return int(drop(p).events.count)


OTHERS = [
    pytest.param(d, marks=pytest.mark.slow) for d in ({"h": 0.0, "e": 1.0}, {"h": -1, "e": 0})
]


@pytest.mark.parametrize("direction", [{"h": 1.0, "e": 0.0}, *OTHERS])
def test_the_sequence_holds_within_the_trust_radius_and_changes_soon_after(direction):
    reach = float(certify(lambda p: drop(p).final.x["h"], P).trust_radius(direction))
    for share, same in ((0.8, True), (1.3, False)):
        there = {k: P[k] + share * reach * direction[k] for k in P}
        assert (counted(there) == counted(P)) is same


def test_the_radius_is_the_first_order_motion_of_the_margin():
    """The fourth bounce leaves the interval: t4 = t1 - margin, and t4 grows like sqrt(h)."""
    cert = certify(lambda p: drop(p).final.x["h"], P)
    t4 = float(drop(P).events.t[-1])
    np.testing.assert_allclose(
        cert.trust_radius({"h": 1.0, "e": 0.0}), (2.0 - t4) / (0.5 * t4), rtol=1e-8
    )


def test_the_certificate_of_a_solution_moves_p_and_holds_the_start(certificate):
    whole = certify(lambda p: drop(p).final.x["h"], P)
    for sign in (-1.0, 1.0):
        np.testing.assert_allclose(
            certificate.trust_radius({"h": 0.0, "e": sign}),
            whole.trust_radius({"h": 0.0, "e": sign}), rtol=1e-9,
        )  # fmt: skip
    with pytest.raises(ValueError, match="expected a pytree like"):
        certificate.trust_radius({"e": np.ones(3)})


def test_a_loss_at_points_is_told_when_an_event_is_about_to_pass_one():
    first = float(drop(P).events.t[0])
    ts = jnp.array([first + 1e-5, 1.3])
    cert = certify(lambda p: jnp.sum(drop(p, ts=ts).y["v"]), P)
    assert float(cert.certificates[0].saves) < 1.1e-5
    assert "about to jump" in repr(cert)


# -- derivatives that do not exist ----------------------------------------------------------------

WALL = HybridSystem(
    flow=lambda now, p: {"u": now.x["v"], "v": 0.0},
    events=[
        Event(
            "wall", guard=lambda now, p: now.x["u"] - 10.0, direction="rising",
            reset=lambda now, p: now.replace(x={"u": now.x["u"], "v": -now.x["v"]}),
        )
    ],
)  # fmt: skip


def test_at_an_event_on_a_save_time_there_are_two_derivatives_and_no_gradient():
    """C6 of the reference: u(5) = 5 v before the wall and 20 - 5 v after it."""
    start = lambda v: Instant(t=0.0, x={"u": 0.0, "v": v})
    cert = certify(lambda v: solve(WALL, start(v), None, 8.0, ts=jnp.array([5.0])).y["u"][0], 2.0)
    assert cert.verdict == "UNTRUSTED" and cert.reasons == ("an event at a saved time",)
    sides = cert.one_sided(1.0)
    np.testing.assert_allclose([sides.left, sides.right], [5.0, -5.0], rtol=1e-8)
    assert abs(sides.jump) < 1e-12 and not sides.agree


def test_an_event_at_the_end_has_no_gradient_either():
    loss = lambda v: solve(WALL, Instant(t=0.0, x={"u": 0.0, "v": v}), None, 5.0).final.x["v"]
    cert = certify(loss, 2.0)
    assert cert.reasons == ("an event at the end",)
    assert cert.one_sided(1.0).jump == pytest.approx(-4.0)


def corner(kick):
    """Two walls that are hit at once; `kick` makes the second reset depend on the first."""
    flip = lambda a, b: lambda now, p: now.replace(x={**now.x, a: -now.x[a] + kick * now.x[b]})
    return HybridSystem(
        flow=lambda now, p: {"x": now.x["vx"], "y": now.x["vy"], "vx": 0.0, "vy": 0.0},
        events=[
            Event("a", guard=lambda now, p: now.x["x"], reset=flip("vx", "vy")),
            Event("b", guard=lambda now, p: now.x["y"], reset=flip("vy", "vx")),
        ],
    )


@pytest.mark.parametrize(
    "kick, trusted", [pytest.param(0.0, True, marks=pytest.mark.slow), (0.3, False)]
)
def test_simultaneous_events_are_harmless_only_if_they_commute(kick, trusted):
    """C7 of the reference: independent walls have a gradient, walls that know each other none."""
    start = lambda x: Instant(t=0.0, x={"x": x, "y": 1.0, "vx": -1.0, "vy": -1.0})
    cert = certify(lambda x: solve(corner(kick), start(x), None, 3.0).final.x["x"], 1.0)
    assert cert.trusted is trusted
    sides = cert.one_sided(1.0)
    assert sides.agree is trusted
    if not trusted:
        assert cert.reasons == ("simultaneous events that do not commute",)


LANDS = HybridSystem(
    flow=lambda now, p: {"x": p["v"] * now.d, "clock": 1.0, "s": 0.0},
    events=[
        Event(
            "land",
            guard=lambda now, p: now.x["clock"] - 1.0,
            direction="rising",
            reset=lambda now, p: now.replace(
                x={**now.x, "x": p["low"] + p["free"] * p["off"]}, d=1.0
            ),
        ),
        Event(
            "low",
            guard=lambda now, p: now.x["x"] - p["low"],
            reset=lambda now, p: now.replace(x={**now.x, "s": now.t}),
        ),
    ],
)


@pytest.mark.parametrize("free", [0.0, 1.0], ids=["always", "by chance"])
@pytest.mark.parametrize("x, v", [(2.0, -1.0), (2.0, 1.0), (0.0, -1.0), (0.0, 1.0)])
def test_a_reset_that_lands_on_a_guard_by_chance_is_not_trusted(x, v, free):
    """Beside these parameters the event happens later, or at once, or never; only where the state
    comes from beyond and goes back, nothing happens on either side."""
    p = {"v": v, "low": 1.0, "off": 0.0, "free": free}
    sol = solve(LANDS, Instant(t=0.0, x={"x": x, "clock": 0.0, "s": 0.0}, d=0.0), p, 1.5)
    np.testing.assert_allclose(sol.final.x["s"], 1.0 if v < 0 else 0.0, rtol=1e-12)
    assert sol.certificate.trusted == (free == 0 or (x == 0 and v > 0)), sol.certificate


@pytest.mark.slow
def test_a_flow_that_jumps_without_an_event_is_found_with_its_place():
    """x' = 1 below 1 and 2 above, by jnp.where: the gradient misses a term."""
    system = HybridSystem(flow=lambda now, p: jnp.where(now.x > p, 2.0, 1.0))
    cert = certify(lambda p: solve(system, Instant(t=0.0, x=0.0), p, 2.0).final.x, 1.0)
    assert cert.verdict == "UNTRUSTED" and "hidden kink" in cert.reasons[0]
    (kink,) = cert.certificates[0].kinks
    assert kink.t == pytest.approx(1.0, abs=1e-6) and "test_trust.py" in kink.where
    marked = HybridSystem(flow=lambda now, p: saltus.when(now.x > p, 2.0, 1.0))
    good = certify(lambda p: solve(marked, Instant(t=0.0, x=0.0), p, 2.0).final.x, 1.0)
    assert good.trusted and good.gradient == pytest.approx(-1.0)


@pytest.mark.slow
def test_chaos_is_not_trusted():
    """Lorenz over 30 time units: errors grow by more than the tolerance leaves room for."""

    def flow(now, p):
        x, y, z = now.x
        return (10.0 * (y - x), x * (p - z) - y, x * y - 8.0 / 3.0 * z)

    sol = solve(HybridSystem(flow=flow), Instant(t=0.0, x=(1.0, 1.0, 1.0)), 28.0, 30.0)
    assert sol.certificate.verdict == "UNTRUSTED"
    assert "errors grow" in sol.certificate.reasons[0]


@pytest.mark.parametrize("control, trusted", [(saltus.Fixed(2.0), False), (saltus.PI(), True)])
def test_steps_that_are_too_long_for_derivatives_at_rest_are_not_trusted(control, trusted):
    """x' = p - x from x = p: nothing moves, d x(T) / d x0 = exp(-T) does."""
    relax = HybridSystem(lambda now, p: {"x": p - now.x["x"]})
    method = saltus.Tsit5(rtol=1e-9, atol=1e-9, control=control)

    def end(x):
        return solve(relax, Instant(t=0.0, x={"x": x}), 1.0, 4.0, method=method)

    slope, sol = jax.jacfwd(lambda x: (end(x).final.x["x"], end(x)), has_aux=True)(1.0)
    assert (sol.certificate.verdict == "TRUSTED") == trusted
    assert (abs(slope - np.exp(-4.0)) < 1e-8) == trusted


@pytest.mark.parametrize(
    "loss",
    [
        lambda p: drop(p)(float(np.sqrt(2 * P["h"] / G)))["v"],  # read where it bounces
        lambda p: jnp.abs(drop(p).final.x["v"] - drop(P).final.x["v"]),
    ],
    ids=["read at an event", "kink of the loss"],
)
def test_kinks_that_no_solution_shows_are_seen_from_both_sides(loss):
    cert = certify(loss, P)
    assert cert.verdict == "UNTRUSTED" and not cert.sides.agree
    assert any("both sides" in reason for reason in cert.reasons)


@pytest.mark.parametrize("width, events", [(2.0, 1), (0.3, 0)])
def test_a_dip_between_the_steps_is_fired_or_named(width, events):
    """x' = 1 takes 8 steps over (0, 10): a guard may dip and come back within one of them."""
    dip = lambda now, p: 1 - 1.5 * jnp.exp(-(((now.x["x"] - 5.03) / p) ** 2))
    system = HybridSystem(lambda now, p: {"x": 1.0}, events=[Event("dip", guard=dip)])
    sol = solve(system, Instant(t=0.0, x={"x": 0.0}), width, 10.0)
    assert int(sol.events.count) == events
    unseen = "a guard seems to have crossed zero unseen" in sol.certificate.reasons
    assert unseen == (events == 0)


def test_measures_that_are_no_numbers_are_not_trusted():
    system = HybridSystem(lambda now, p: {"x": jnp.sqrt(jnp.abs(now.x["x"])) * 0 + p})
    cert = solve(system, Instant(t=0.0, x={"x": 0.0}), 1.0, 1.0).certificate
    assert np.isnan(cert.growth) and cert.verdict == "UNTRUSTED"


@pytest.mark.slow
def test_a_failed_solve_is_not_trusted():
    sol = drop({"h": 1.0, "e": 0.5}, t1=5.0, throw=False)
    assert sol.certificate.verdict == "UNTRUSTED"
    assert sol.certificate.reasons[0] == "the solve failed"


def test_differences_are_taken_where_the_sequence_stays():
    cert = certify(lambda p: drop(p).final.x["h"], P, differences=True)
    check = cert.differences
    assert check.valid and not check.disagree
    assert "same events" in repr(cert)


@pytest.mark.parametrize("tol", [1e-8, pytest.param(1e-10, marks=pytest.mark.slow)])
def test_the_simple_hybrid_ode_is_trusted(tol):
    """Its gradients are right to nine digits; sensitivities decay to a thousandth at the end."""
    case = problem("simple_hybrid_ode")
    method = saltus.Tsit5(rtol=tol, atol=tol)
    sol = solve(case.system, case.start({"p": 2.5}), {"p": 2.5}, 5.0, method=method)
    assert sol.certificate.trusted, sol.certificate


def test_every_reason_has_advice():
    from saltus.trust.reasons import ADVICE

    assert len(ADVICE) == len(REASONS) == len(drop(P).certificate.levels)


def test_a_batch_inside_of_a_loss_is_refused_by_name():
    falls = lambda h: drop({**P, "h": h}).final.x["h"]
    with pytest.raises(ValueError, match=r"inside jax\.vmap"):
        certify(lambda p: jnp.sum(jax.vmap(falls)(p)), jnp.array([1.0, 2.0]))
    with pytest.raises(AttributeError, match=r"saltus\.certify"):
        drop(P).certificate.one_sided(P)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="did not call"):
        certify(lambda p: p**2, 1.0)
    with pytest.raises(ValueError, match="expected one number"):
        certify(lambda p: drop({"h": p, "e": 0.7}, ts=jnp.linspace(0, 1, 3)).y["h"], 1.0)
    cert = certify(lambda p: drop(p).final.x["h"], P)
    with pytest.raises(ValueError, match="expected a pytree like p"):
        cert.reach(1.0)


@pytest.mark.parametrize("p", [0.1, 0.6, 0.9])
def test_sweeps_agree_where_the_time_of_an_event_cancels_out(p):
    """Large terms of the adjoint cancel: what is left is their rounding, no disagreement."""
    mark = Event(
        "mark",
        guard=lambda now, p: p - now.x["x"],
        reset=lambda now, p: now.replace(x={**now.x, "q": 1.0}),
    )
    system = HybridSystem(lambda now, p: {"x": 1.0, "q": 0.0}, events=[mark])
    start = Instant(t=0.0, x={"x": 0.0, "q": 0.0})
    assert solve(system, start, p, 1.0).certificate.verdict == "TRUSTED"

"""The restart policy: decided from values, with the reason as a sentence."""

import pytest

from phalanx.errors import SettingError
from phalanx.restart import PREEMPTED, Exit, Policy, decide

LONG, SHORT = 100.0, 2.0


def end(code=1, seconds=LONG, **more):
    return Exit(code=code, who="worker 1", how=f"left with code {code}", started=0, ended=seconds, **more)


def follow(ends, policy):
    """Decide about each end in turn, right when it happens."""
    return [decide(ends[:at], each, each.ended, policy) for at, each in enumerate(ends)]


def test_by_default_nothing_starts_again_and_the_reason_is_the_failure():
    decision = decide([], end(3), LONG, Policy())
    assert (decision.action, decision.reason) == ("stop", "worker 1 left with code 3")


def test_failures_restart_with_growing_back_off_until_they_are_used_up():
    decisions = follow([end()] * 4, Policy(max_restarts=3, backoff=2))
    assert [each.action for each in decisions] == ["restart"] * 3 + ["stop"]
    assert [each.delay for each in decisions] == [2, 4, 8, 0]
    assert decisions[1].reason == "worker 1 left with code 1: restart 2 of 3"
    assert decisions[3].reason == "worker 1 left with code 1; 3 restarts used up"


def test_back_off_has_an_upper_end_however_many_restarts_there_were():
    decision = decide([end()] * 500, end(), LONG, Policy(max_restarts=1000, longest=60))
    assert decision.delay == 60


def test_time_that_has_passed_since_the_failure_counts_as_back_off():
    policy = Policy(max_restarts=1, backoff=4)
    assert decide([], end(), LONG + 3, policy).delay == 1
    assert decide([], end(), LONG + 30, policy).delay == 0


def test_three_short_runs_in_a_row_are_a_crash_loop_though_restarts_are_left():
    decisions = follow([end(seconds=SHORT)] * 3, Policy(max_restarts=10))
    assert [each.action for each in decisions] == ["restart", "restart", "stop"]
    assert decisions[2].reason == (
        "worker 1 left with code 1; a crash loop: 3 runs in a row ended early (2.0 s, 2.0 s, 2.0 s), "
        "and another would, too"
    )


def test_a_long_run_breaks_a_crash_loop():
    ends = [end(seconds=SHORT), end(seconds=SHORT), end(), end(seconds=SHORT), end(seconds=SHORT)]
    assert all(each.action == "restart" for each in follow(ends, Policy(max_restarts=10)))


def test_a_preempted_worker_restarts_without_counting():
    ends = [end(PREEMPTED)] * 50 + [end(), end(PREEMPTED), end()]
    decisions = follow(ends, Policy(max_restarts=1))
    assert [each.action for each in decisions] == ["restart"] * 52 + ["stop"]
    assert decisions[0].reason == "worker 1 left with code 75, which means preempted: restart, not counted"
    assert decisions[50].reason == "worker 1 left with code 1: restart 1 of 1"


def test_preempted_runs_that_get_nowhere_end_as_a_crash_loop():
    decisions = follow([end(PREEMPTED, SHORT)] * 3, Policy(max_restarts=10))
    assert decisions[2].action == "stop" and "crash loop" in decisions[2].reason


@pytest.mark.parametrize("code", [PREEMPTED, 137])
def test_short_runs_that_completed_a_backup_got_on_and_are_no_crash_loop(code):
    ends = [end(code, SHORT, saved=2)] * 9
    assert {each.action for each in follow(ends, Policy(max_restarts=9))} == {"restart"}
    mixed = [
        end(code, SHORT),
        end(code, SHORT),
        end(code, SHORT, saved=1),
        end(code, SHORT),
        end(code, SHORT),
    ]
    assert {each.action for each in follow(mixed, Policy(max_restarts=9))} == {"restart"}
    assert follow([*mixed, end(code, SHORT)], Policy(max_restarts=9))[-1].action == "stop"


def test_a_preempted_worker_stays_down_where_no_restart_was_asked_for():
    assert decide([], end(PREEMPTED), LONG, Policy()).action == "stop"


@pytest.mark.parametrize("told", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("code", [0, 1, PREEMPTED])
def test_a_launcher_that_is_told_to_end_never_restarts(told, code):
    decision = decide([], end(code, told=told), LONG, Policy(max_restarts=10))
    assert decision.action == "stop" and decision.reason == f"{told} ends the run and never restarts it"


def test_a_worker_that_is_done_waits_for_the_others():
    waiting = decide([], end(0, running=2), LONG, Policy(max_restarts=10))
    assert (waiting.action, waiting.reason) == ("wait", "worker 1 is done; 2 workers to wait for")
    assert decide([], end(0), LONG, Policy(max_restarts=10)).action == "stop"


def test_a_port_that_another_program_took_restarts_at_once_without_counting_but_not_for_ever():
    ends = [end(seconds=SHORT, port_taken=7001)] * 3
    decisions = follow(ends, Policy())
    assert [each.action for each in decisions] == ["restart", "restart", "stop"]
    assert decisions[0].delay == 0
    assert decisions[0].reason == "another program took port 7001: new ports, not counted"


@pytest.mark.parametrize("wrong", [{"max_restarts": -1}, {"backoff": -1}, {"loop": 1}, {"short": -0.5}])
def test_numbers_outside_their_rule_are_quoted(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(SettingError, match=f"{name}={value}"):
        Policy(**wrong)

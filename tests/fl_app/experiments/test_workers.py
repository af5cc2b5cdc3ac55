"""Processes that work a list off."""

import multiprocessing
import signal

import pytest
from worker_tasks import double, prepare

from fl_app.experiments.workers import Died, work_off


def worked(tasks, jobs=2):
    begun = []
    results = dict(work_off(tasks, double, jobs=jobs, prepare=prepare, begun=begun.append))
    return results, begun


def test_every_task_is_done_once():
    results, begun = worked([1, 2, 3, "ab"])
    assert results == {0: 2, 1: 4, 2: 6, 3: "abab"}
    assert sorted(begun) == [0, 1, 2, 3]


def test_a_process_that_dies_costs_its_own_task():
    results, _ = worked([1, "die", 3], jobs=1)
    assert results == {0: 2, 1: Died(7), 2: 6}


def test_who_stops_listening_ends_the_processes():
    results = work_off(["a", "stay"], double, jobs=2, prepare=prepare, begun=lambda number: None)
    assert next(results) == (0, "aa")
    results.close()
    assert not multiprocessing.active_children()


def test_a_terminal_interrupts_the_parent_alone_from_the_workers_first_moment():
    results, _ = worked(["ctrl-c"])
    assert results == {0: True}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_interruption_ends_them_too():
    def interrupt(number):
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(work_off(["stay", "stay"], double, jobs=2, prepare=prepare, begun=interrupt))
    assert not multiprocessing.active_children()

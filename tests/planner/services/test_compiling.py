"""Runs that come while the simulator is compiled wait for it, say so, and start by themselves."""

import pytest

from planner.models import Run
from planner.services import kernel_compilation, worker
from planner.services.run_queue import SHORT
from planner.services.scenarios import scenario_run


@pytest.fixture
def compiler(settings, tmp_path):
    """Somebody who compiles, until closed."""
    settings.HEADROOM_DATA_DIR = tmp_path
    held = kernel_compilation.compile_lock()
    yield held
    held.close()


@pytest.fixture
def run(planner, scenario, monkeypatch):
    monkeypatch.setattr(worker, "run_body", lambda *, run, progress, parts: {"done": True})
    return scenario_run(scenario=scenario, owner=planner, kind=Run.Kind.COMPARE)


def test_a_run_waits_with_a_count_of_functions_and_then_starts_by_itself(run, compiler):
    (compiler_file := kernel_compilation._lock_file()).write_text("37 of 40")
    heard = []

    def observer(fraction, stage):
        run.refresh_from_db()
        heard.append((fraction, stage, run.state))
        compiler.close()

    over = worker.run_execute(run_id=run.pk, observer=observer)
    ((fraction, stage, state),) = heard
    assert (fraction, state) == (0.0, Run.State.RUNNING)
    assert "37 of 40" in stage
    assert stage in over.log
    assert (over.state, over.result) == (Run.State.COMPLETED, {"done": True})
    assert compiler_file.exists()


def test_a_run_that_waits_can_be_cancelled(run, compiler):
    run_of = Run.objects.filter(pk=run.pk)

    def observer(fraction, stage):
        run_of.update(cancel_requested=True)

    assert worker.run_execute(run_id=run.pk, observer=observer).state == Run.State.CANCELLED


def test_only_one_compiles_and_nobody_waits_for_one_that_is_gone(compiler):
    assert kernel_compilation.compile_lock() is None
    assert kernel_compilation.compiled_count() == ""
    compiler.close()
    assert kernel_compilation.compiled_count() is None


def test_a_forecast_needs_no_simulator(run, compiler):
    Run.objects.filter(pk=run.pk).update(kind=Run.Kind.FORECAST)
    assert worker.run_execute(run_id=run.pk).state == Run.State.COMPLETED


def test_an_upload_does_not_wait_behind_a_run_that_waits_for_the_compiler(run, compiler):
    Run.objects.filter(pk=run.pk).update(kind=Run.Kind.SIZE)
    upload = Run.objects.create(kind=Run.Kind.INGEST, enqueued_at=run.created_at)
    assert worker.run_next(SHORT).pk == upload.pk
    compiler.close()
    assert worker.run_next(SHORT).pk == run.pk

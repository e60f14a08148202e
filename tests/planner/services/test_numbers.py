"""Numbers of rows that people name by number: consecutive, and none given twice."""

import pytest
from django.db import connection, transaction

from planner.domain.whatif.settings import Axis
from planner.models import Counter, Numbered, Run, Sweep
from planner.services import backups
from planner.services.backups import backup, restore
from planner.services.runs import run_create
from planner.services.whatif import sweep_create
from tests.at_once import at_once
from tests.planner.samples import DOCUMENT

CREATORS, EACH = 6, 10


def numbers(kind: type[Numbered] = Run) -> list[int]:
    return sorted(kind._base_manager.values_list("pk", flat=True))


def consecutive(numbered: list[int]) -> bool:
    return numbered == list(range(numbered[0], numbered[0] + len(numbered)))


def test_what_is_rolled_back_leaves_no_gap(planner):
    first = run_create(owner=planner, kind=Run.Kind.PLAN, idempotency_key="k")
    with transaction.atomic():
        Run.objects.create(kind=Run.Kind.PLAN)
        transaction.set_rollback(True)
    for _ in range(3):  # an insert that the key's constraint refuses
        assert run_create(owner=planner, kind=Run.Kind.PLAN, idempotency_key="k").pk == first.pk
    assert run_create(owner=planner, kind=Run.Kind.PLAN).pk == first.pk + 1


def test_a_number_that_was_chosen_by_hand_is_gone_past(db):
    Run.objects.create(pk=40, kind=Run.Kind.PLAN)
    assert Run.objects.create(kind=Run.Kind.PLAN).pk == 41
    Run.objects.bulk_create([Run(kind=Run.Kind.PLAN)])
    assert Run.objects.create(kind=Run.Kind.PLAN).pk == 43


def test_the_runs_of_a_sweep_follow_each_other_and_the_counter_is_asked_once(
    planner, django_assert_num_queries
):
    def updates(cells):
        axes = [Axis("seed", tuple(range(cells)))]
        with connection.execute_wrapper(counted):
            sweep = sweep_create(owner=planner, document=DOCUMENT, axes=axes, enqueue=False)
        numbered = list(sweep.runs.order_by("cell").values_list("pk", flat=True))
        assert numbered == list(range(numbered[0], numbered[0] + cells))
        return numbered, seen.pop()

    seen = [0]

    def counted(execute, sql, *rest):
        seen[-1] += sql.startswith(f'UPDATE "{Counter._meta.db_table}"')
        return execute(sql, *rest)

    first, once = updates(3)
    seen.append(0)
    second, again = updates(7)
    assert second[0] == first[-1] + 1
    assert once == again
    assert consecutive(numbers(Sweep))


@pytest.mark.django_db(transaction=True)
def test_concurrent_creators_get_consecutive_numbers():
    """Each in a thread with its own connection; every third insert is rolled back."""
    Run.everywhere.all().delete()

    def create(creator: int) -> None:
        for turn in range(EACH):
            with transaction.atomic():
                Run.objects.create(kind=Run.Kind.PLAN, name=f"{creator}")
                transaction.set_rollback(turn % 3 == 2)

    at_once(CREATORS, create)
    numbered = numbers()
    assert len(numbered) == CREATORS * (EACH - EACH // 3)
    assert consecutive(numbered)


@pytest.mark.parametrize("with_counter", [True, False])
def test_numbers_go_on_after_a_restore(with_counter, db, tmp_path):
    """Also of a backup from a version without counters."""
    for _ in range(5):
        Run.objects.create(kind=Run.Kind.PLAN, state=Run.State.COMPLETED)
    Run.objects.latest("pk").delete()
    if not with_counter:
        Counter.objects.all().delete()
    backup(tmp_path / "all.tar.zst")
    for _ in range(4):
        Run.objects.create(kind=Run.Kind.PLAN)
    restore(tmp_path / "all.tar.zst", replace=True)
    highest = 5 if with_counter else 4
    assert [Run.objects.create(kind=Run.Kind.PLAN).pk for _ in range(2)] == [
        highest + 1,
        highest + 2,
    ]


def test_a_counter_alone_does_not_make_an_installation_full(db):
    run = Run.objects.create(kind=Run.Kind.PLAN)
    run.delete()
    assert Counter.objects.exists()
    assert "counter" not in backups._rows_to_replace()

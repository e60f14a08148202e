"""Published recipes give the rows of their runs the facts that these omit, and no others."""

from tools.catalogue.recipes import facts_of, read_recipes, traits_of_recipe

RUN = ("gb200", "trtllm", "fp8", 8192, 1024, 90)
ROW = {
    "backend_version": "0.8.1.post2",
    "decode_num_workers": None,
    "decode_tp_size": 32.0,
    "decode_moe_ep_size": 8.0,
    "prefill_moe_ep_size": 8.0,
}


def test_a_recipe_states_drafts_workers_and_arrangement() -> None:
    """The published run: 2 workers prefill, 1 of 32 GPUs decodes with 3 drafts."""
    facts = facts_of(read_recipes()[RUN], ROW, "mtp")
    traits = traits_of_recipe(facts)
    assert facts["drafts"] == 3
    assert (traits["prefill_workers"], traits["decode_workers"]) == (2, 1)
    assert (traits["decode_tp"], traits["decode_attention_dp"]) == (1, 32)
    assert traits["decode_moe_ep"] * traits["decode_moe_tp"] == 32


def test_recipes_that_differ_leave_a_fact_open() -> None:
    one = facts_of(read_recipes()[RUN], ROW, "mtp")
    other = one | {"drafts": 1, "decode_workers": 2}
    facts = facts_of([one, other], ROW, "mtp")
    assert "drafts" not in facts and traits_of_recipe(facts) == {}
    assert facts["decode_tp"] == one["decode_tp"]
    assert facts_of([one, other], ROW | {"decode_num_workers": 2}, "mtp") == other
    assert facts_of([one], ROW, "none") == {} == facts_of([], ROW, None)

"""List what a how-to's job takes in the browser, shown before its command line.

Each entry is Markdown. Links to pages begin with ``web:``, as names of routes do.
"""

PREFIX = "web:"
STEPS = {
    "plan-tomorrow": """\
1. Open a trace of [Traces](web:traces), and choose *Make a scenario from this trace*. *Plan ahead*,
   *A day* is chosen, and every field has a value.
2. Check the assumptions. Enter the current fleet, so that savings are known.
3. Choose *Plan and compare*. After some minutes the result has the replicas of each hour, the
   cost and the risk.
4. Choose *Propose change*.""",
    "plan-a-launch": """\
1. Open [New scenario](web:scenario-new), and describe the launch: requests, lengths and the
   shape of a day.
2. Choose *Plan and compare* on the draft.""",
    "plan-months-ahead": """\
1. Open [New scenario](web:scenario-new), and choose a trace with *A month*, *A quarter* or *A
   year*.
2. Choose *Plan and compare* on the draft. A scenario has *Cost by month* under *Analyses*, too.""",
    "plan-on-a-schedule": """\
1. Open [Schedules](web:schedules), and choose *New schedule*.
2. Choose the scenario and the times. Set how much a new plan may differ before a person reviews
   it.""",
    "ask-what-if": """\
1. Open a result, and choose *What-if*.
2. Choose a setting and a value. The new plan appears at once. A value under *To* draws a chart.
3. Choose *Simulate* for SLO attainment and latencies.""",
    "check-n-plus-1": """\
1. Run *Plan and compare* on one of the [Scenarios](web:scenarios). The tile *Redundancy* of the
   result says whether the plan is N+1.
2. Choose *Balanced* or *Safe* among the alternatives. *Test days* lists the loss of a replica.""",
    "plan-within-power": """\
1. Open one of the [Scenarios](web:scenarios), and enter the power limit of a region under
   *Regions and their GPUs*.
2. Run the analysis *Plan without simulation*.""",
    "choose-a-gpu": """\
1. Open [Find a deployment](web:configure). Enter the model, the tokens of a request and the
   limits.
2. Choose your GPU types, and *Search*.
3. Tick rows, and use them in a scenario.""",
    "count-gpus": """\
1. Open [Count GPUs](web:quick-size).
2. Enter the model, the GPU, and users or requests per second.""",
    "split-prefill-and-decode": """\
1. Open [Prefill-decode ratio](web:pd-ratio), and choose a service of a scenario.
2. Choose *Find the ratio*. The result says if aggregated serving is better.""",
    "compare-autoscalers": """\
1. Open one of the [Scenarios](web:scenarios). Tick *Kubernetes autoscaler* under *Policies to
   compare*, or others under *Research policies*.
2. Choose *Plan and compare*. The section *Policies* of the result has a row for each.""",
    "share-gpus": """\
1. Open a scenario with several models in [Scenarios](web:scenarios).
2. Run *Shared GPUs* under *More analyses*.""",
    "change-roles": """\
1. Open one of the [Scenarios](web:scenarios) with prefill and decode pools. Under *Research
   policies*, tick one of *Replicas that change roles*.
2. Choose *Plan and compare*. The section *Policies* of the result compares its cost, and
   *Requests, GPU-hours and replica starts* counts the role changes.""",
    "follow-prices": """\
1. Open one of the [Scenarios](web:scenarios), and enter prices by hour under *Regions and their
   GPUs*. Mark a tier as deferrable under *Service tiers*.
2. Under *Limits and objective*, choose when deferrable work runs, and *Periods: all*.
3. Run *Plan without simulation*. *Deferrable work* shows when and where it runs.""",
    "measure-your-gpu": """\
1. Run the script below on your GPU.
2. Open [Measurements](web:calibrations), and upload its file.
3. Make an operator profile from it, and use the profile in a scenario.""",
    "review-a-plan": """\
1. Open a result, and choose *Propose change*. Give a title and reviewers.
2. A reviewer opens it in [Proposals](web:proposals), reads the checks and the difference, and
   chooses *Approve*.
3. The approved plan is in [Active plans](web:plans-in-force).""",
    "read-your-traffic": """\
1. Open [Upload a trace](web:trace-upload), and drop the file.
2. If a column is unknown, the page asks what it is.
3. The page of the trace shows its days, lengths and gaps. *Make a scenario from this
   trace* plans on it.""",
    "connect-live-traffic": """\
1. Open [Live sources](web:sources), and choose *New source*.
2. Choose the kind, enter the address, and preview what is read.""",
    "import-your-fleet": """\
1. Open one of the [Scenarios](web:scenarios), and choose *Import your fleet*.
2. Paste or upload the manifests of your cluster.""",
    "use-your-measurements": """\
1. Open [Measurements](web:calibrations), and upload the file of a benchmark.
2. Scenarios that name the fitted profile use it.""",
    "ship-to-keda": """\
1. Open an active plan of [Active plans](web:plans-in-force), or its result, and choose *Export
   plan*.
2. Choose a format. The preview shows the file.
3. Choose *Download*.""",
    "use-the-api": """\
1. Open [API tokens](web:token) in the account menu. Enter a name, and choose *Create token*.
2. Copy the token. It is shown once.
3. Choose *API documentation*. It has every address and field.""",
    "write-a-policy": """\
1. Write the policy as a Python class, and check it, as below.
2. The operator of the installation adds its name to `HEADROOM_POLICIES`.
3. Open one of the [Scenarios](web:scenarios), and tick the policy under *Research policies*.""",
    "manage-people": """\
1. Open [People](web:people) in the account menu, and enter a name, an address and a role.
2. Choose *Invite*.""",
}  # fmt: skip


def browser_steps(slug: str) -> str:
    """Return the steps of a how-to as Markdown with an item per line; "" if there are none."""
    return STEPS.get(slug, "").replace("\n   ", " ")

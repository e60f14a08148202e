#!/bin/bash
# Plan on a schedule over HTTP: bash -euo pipefail docs/examples/schedule.sh, with PASSWORD of an approver.
API=${API:-http://127.0.0.1:8000/api/v1}
TOKEN=$(curl -s $API/token/ -d username=${NAME:-demo} --data-urlencode password="$PASSWORD" | jq -r .token)
AUTH="Authorization: Token $TOKEN"
JSON='Content-Type: application/json'
poll() { until curl -s -H "$AUTH" $1 | jq -e '.state | IN("pending", "running") | not' > /dev/null; do sleep 1; done; }

# The traffic and the scenario.
RUN=$(curl -s -H "$AUTH" $API/ingest/ -F file=@docs/examples/small-week.csv | jq -r .run.links.self)
poll $RUN
(sed 's/file: small-week.csv/trace: small-week/' docs/examples/first-plan.yml
  echo 'forecast: {method: seasonal-naive}') |
  curl -s -H "$AUTH" -H 'Content-Type: application/yaml' --data-binary @- $API/scenarios/ > /dev/null

# Every midnight. Half of the replica-hours and of the cost may change without a review.
SCHEDULE=$(curl -s -H "$AUTH" -H "$JSON" $API/schedules/ -d '{"name": "Midnights", "scenario": "First plan",
  "cron": "0 0 * * *", "most_replicas": 0.5, "most_cost": 0.5}' | jq -r .link)

# Now, as of a day of the trace. No plan is active, so a person decides.
FIRING=$(curl -s -H "$AUTH" -H "$JSON" ${SCHEDULE}fire/ -d '{"as_of": "2024-05-18T00:00:00Z"}' | jq -r .link)
poll $FIRING
curl -s -H "$AUTH" $FIRING | jq -c '[.state, .words]'
curl -s -H "$AUTH" -H "$JSON" $API/plan-in-force/ -d "$(curl -s -H "$AUTH" $FIRING | jq '{run, repeat: "once"}')" > /dev/null

# As of the next day: approved by rule.
FIRING=$(curl -s -H "$AUTH" -H "$JSON" ${SCHEDULE}fire/ -d '{"as_of": "2024-05-19T00:00:00Z"}' | jq -r .link)
poll $FIRING
curl -s -H "$AUTH" $FIRING | jq -c '[.state, .words]'
curl -s -H "$AUTH" $API/plan-in-force/ | jq -c '[.begins, .ends]'

curl -s -H "$AUTH" -X POST ${SCHEDULE}pause/ | jq -c '[.name, .paused]'
curl -s -H "$AUTH" ${SCHEDULE}firings/ | jq -c '[.results[].state]'
curl -s -H "$AUTH" $API/outcomes/ | jq .count
curl -s -H "$AUTH" $API/digest/ | jq -r .text

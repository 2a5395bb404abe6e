#!/bin/sh
# Runs a command in the queue of an environment: one at a time, in order of arrival.
#
#   queue.sh ENVIRONMENT COMMAND [ARGUMENT…]
#
# The job's log says who is deploying and how many jobs come before this one. What each flag is for:
#   -v             say so without a terminal, too, and say when the turn has come
#   --wait         give up after two hours in the queue (exit code 75)
#   --run-timeout  stop a deployment that hangs (exit code 124), so that the queue goes on
#   --ttl          a runner that vanishes keeps the queue waiting this long; an outage of the store of a
#                  quarter of it stops nobody
# exec: a signal from the CI system reaches stile, which leaves the queue or stops the command.
set -eu
environment=$1
shift
exec stile run -v --wait 2h --run-timeout 30m --ttl 1m \
	--reason "${GITHUB_WORKFLOW:-deploy} run ${GITHUB_RUN_NUMBER:-by hand}" \
	"deploy/$environment" -- "$@"

# Sourced by each http test: the Python that runs them, where its modules are, and what sanitizers leave out.
TESTS=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
PYTHON=${PYTHON:-/usr/bin/python3} # where apt puts numpy and yaml
export PYTHONPATH=$TESTS/http/lib:$TESTS/fakes${PYTHONPATH:+:$PYTHONPATH}
export PYTHONDONTWRITEBYTECODE=1
export BATON_LISTEN=127.0.0.1:0 # other servers may have the default port
export TSAN_OPTIONS="suppressions=$TESTS/tsan.supp ${TSAN_OPTIONS:-}"

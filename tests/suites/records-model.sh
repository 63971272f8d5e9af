#!/bin/bash
# Random calls on record locks, by processes on three hosts, against the plain kernel: see model/model.py. `make soak` runs
# more of it, with a new seed. A run can be repeated with the seed it prints.
. "$(dirname "$0")/../lib.sh"

model() {
	timeout 200 /usr/bin/python3 "$TESTS/model/model.py" --build "$BUILD" "$@" >"$W/model" 2>&1
	RC=$?
	cut -c1-600 "$W/model"
}

test_what_the_plain_kernel_answers_three_hosts_answer_too() {
	# No lease ends meanwhile: that would be no end of what the kernel has.
	model --seed 41 --steps 1500 --ttl 120000
	assertEquals "$(tail -n 1 "$W/model")" 0 $RC
}

# asan: no: no code of ours runs
test_without_the_shim_there_are_differences() {
	model --seed 41 --steps 300 --disable
	assertEquals 1 $RC
	assertContains "$(tail -n 1 "$W/model")" "the kernel says"
}

. /usr/share/shunit2/shunit2

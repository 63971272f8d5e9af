#!/bin/bash
# A password is given in the URL or a file, and is never shown: in no log, no error, no process's arguments.
. "$(dirname "$0")/../lib.sh"

SECRET=Qz7-top.secret
USERPW=Wm3-users.secret

suite_setup() {
	R acl setuser locker on ">$USERPW" '~*' '&*' +@all >/dev/null
	R config set requirepass $SECRET >/dev/null
	REDIS_AUTH=$SECRET
	umask 077
	echo $SECRET >"$W/password"; printf %s $USERPW >"$W/userpw"; echo "not-$SECRET" >"$W/wrongpw"
	umask 022
}
R() { REDISCLI_AUTH=$SECRET redis-cli -s "$SOCK" "$@"; }

# with URL [VAR=VALUE...]: locks with this URL, everything logged that can be.
with() {
	local url=$1; shift
	H 1 NETFLOCK_URL="$url" NETFLOCK_LOG_LEVEL=debug "$@" flock -n "$F" true >"$W/out" 2>&1
}
no_secret() { assertFalse "$1 shows a password: $(grep -e secret "$2" | head -3)" "grep -q secret $2"; }

test_every_way_to_give_a_password() {
	with "redis://:$SECRET@127.0.0.1:$PORT"; status_is 0 $? "URL" "$W/out"
	with "redis://locker:$USERPW@127.0.0.1:$PORT"; assertEquals "user in the URL" 0 $?
	with "redis://127.0.0.1:$PORT" NETFLOCK_PASSWORD_FILE="$W/password"; assertEquals "file" 0 $?
	with "unix://$SOCK" NETFLOCK_PASSWORD_FILE="$W/password"; assertEquals "file, socket" 0 $?
	with "redis://locker@127.0.0.1:$PORT" NETFLOCK_PASSWORD_FILE="$W/userpw"; assertEquals "user and file" 0 $?
	no_secret "the log" "$W/out"
}

test_special_characters_are_percent_encoded_in_the_url() {
	R acl setuser odd on '>a@b:c/d%e?' '~*' '&*' +@all >/dev/null
	with "redis://odd:a%40b%3Ac%2Fd%25e%3F@127.0.0.1:$PORT"
	status_is 0 $? "" "$W/out"
}

test_a_wrong_password_is_an_error_that_does_not_show_it() {
	local u
	for u in "redis://:wrong-$SECRET@127.0.0.1:$PORT" "redis://locker:wrong-$SECRET@127.0.0.1:$PORT"; do
		with "$u"; assertEquals 71 $?
		no_secret "the error" "$W/out"
		assertTrue "and names the reason" 'grep -q -i -e WRONGPASS -e password "$W/out"'
	done
	with "unix://$SOCK" NETFLOCK_PASSWORD_FILE="$W/wrongpw"; assertEquals 71 $?
	no_secret "the error" "$W/out"
	with "unix://$SOCK"; assertEquals "none at all" 71 $?
	assertTrue 'grep -q -i -e NOAUTH -e auth "$W/out"'
}

test_an_unreachable_server_s_url_is_shown_without_password() {
	with "redis://:$SECRET@127.0.0.1:$(free_port)"
	assertEquals 71 $?
	no_secret "the error" "$W/out"
}

test_a_wrong_url_is_shown_without_password() {
	local u
	for u in "redis://:$SECRET@127.0.0.1:port" "http://me:$SECRET@host" "redis://me:$SECRET@h:99999/x" "redis://:$SECRET"; do
		with "$u"
		no_secret "the error about the URL" "$W/out"
	done
}

test_no_process_has_a_password_in_its_arguments() {
	local p
	H 1 NETFLOCK_URL="redis://:$SECRET@127.0.0.1:$PORT" NETFLOCK_KEEPER=always flock "$F" sleep 30 &
	wait_held "$F"
	H 1 NETFLOCK_URL="unix://$SOCK" NETFLOCK_PASSWORD_FILE="$W/password" NETFLOCK_KEEPER=always flock "$D/y" sleep 30 &
	wait_held "$D/y"
	for p in $(strays); do
		assertFalse "$(tr '\0' ' ' <"/proc/$p/cmdline")" "grep -q secret /proc/$p/cmdline"
	done
	assertNotContains "the token" "$(R get "lock:$F")" secret
}

test_netflock_shows_no_password() {
	H 1 NETFLOCK_URL="redis://:$SECRET@127.0.0.1:$PORT" flock "$F" sleep 30 &
	wait_held "$F"
	NETFLOCK_URL="redis://:$SECRET@127.0.0.1:$PORT" NETFLOCK_PREFIX=$D "$NETFLOCK" status >"$W/out" 2>&1
	status_is 0 $? "" "$W/out"
	assertContains "$(cat "$W/out")" "$F"
	no_secret "status" "$W/out"
	NETFLOCK_URL="redis://:no-$SECRET@127.0.0.1:$PORT" NETFLOCK_PREFIX=$D "$NETFLOCK" status >"$W/out" 2>&1
	assertNotEquals 0 $?
	no_secret "status with a wrong password" "$W/out"
	# With --url the password would be in the command line of the caller; what is started must not repeat it.
	"$NETFLOCK" run --prefix "$D" --url "redis://:$SECRET@127.0.0.1:$PORT" -- sh -c 'tr "\0" " " </proc/$$/cmdline' >"$W/out" 2>&1
	no_secret "a program started by run" "$W/out"
}

. /usr/share/shunit2/shunit2

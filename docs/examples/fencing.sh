#!/bin/sh
# fencing.sh DATABASE AMOUNT: adds AMOUNT to a balance in an SQLite database, unless the lock has been lost meanwhile.
# To be run under the lock:
#
#     netflock lock /srv/share/balance.lock docs/examples/fencing.sh /srv/share/balance.db 10
#
# A lease is no proof: a machine that slept for longer than its lease wakes up, believes that it holds the lock, and
# writes over what the next holder did. So the table keeps the fencing token of whoever wrote last. Tokens grow from holder
# to holder: a write under a smaller one comes too late, and changes nothing. That is decided by the database, in the same
# statement as the write; checking first and writing then would leave the gap that this is about.
#
# "<=" lets one holder write as often as it likes. The same condition works in any SQL database.
set -eu
db=$1
amount=$2
: "${NETFLOCK_FENCE:?run me with netflock lock}"

sqlite3 "$db" "CREATE TABLE IF NOT EXISTS account (name TEXT PRIMARY KEY, balance INTEGER, last_fence INTEGER);
	INSERT OR IGNORE INTO account VALUES ('main', 0, 0);"
balance=$(sqlite3 "$db" "SELECT balance FROM account WHERE name = 'main';")
new=$((balance + amount)) # the work, which may take long

changed=$(sqlite3 "$db" ".parameter set :new $new" ".parameter set :fence $NETFLOCK_FENCE" "
	UPDATE account SET balance = :new, last_fence = :fence WHERE name = 'main' AND last_fence <= :fence;
	SELECT changes();")
if [ "$changed" != 1 ]; then
	echo "fencing.sh: refused: somebody has held the lock since token $NETFLOCK_FENCE" >&2
	exit 1
fi

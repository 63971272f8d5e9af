-- Extends an owner's lease. KEYS: file   ARGV: token, ttl ms, the server's run id and NETFLOCK_GRACE (run.lua), 1 if the
-- caller's own deadline is past   Returns {1}; {3}: Redis does not know it, but it may be reclaimed (range_sync); {0, ''}: lost.
-- A lease that has run out, but whose owner nobody has taken out yet, still has all its ranges.
--#include ranges.lua
--#include run.lua
local id, ttl = id_of(ARGV[1]), tonumber(ARGV[2])
local seq, token = seq_of(id)
local in_grace = grace(file, ARGV[3], ARGV[4], true) > 0
redis.call('EXPIRE', prefix .. 'run', 86400)
if not seq then return {in_grace and ARGV[5] ~= '1' and 3 or 0, ''} end
note(id, string.format('%.0f', seq), token, ttl)
if redis.call('EXISTS', 'netflock:waits:' .. base_of(id)) == 1 then redis.call('PEXPIRE', 'netflock:waits:' .. base_of(id), math.max(ttl, 7000)) end
return {1}

-- Extends an owner's lease. KEYS: file   ARGV: token, ttl ms   Returns {1}, or {0, ''} when Redis does not know it.
-- A lease that has run out, but whose owner nobody has taken out yet, still has all its ranges.
--#include ranges.lua
local id, ttl = id_of(ARGV[1]), tonumber(ARGV[2])
local seq, token = seq_of(id)
if not seq then return {0, ''} end
note(id, string.format('%.0f', seq), token, ttl)
if redis.call('EXISTS', 'netflock:waits:' .. base_of(id)) == 1 then redis.call('PEXPIRE', 'netflock:waits:' .. base_of(id), math.max(ttl, 7000)) end
return {1}

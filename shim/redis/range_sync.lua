-- Takes from an owner what it does not hold any more: requests to give it up may have been lost. Adds nothing; but to
-- reclaim, in the grace after a restart (run.lua), gives an owner that is not known what it held.
-- KEYS: file   ARGV: token, seq, ttl ms, what it holds: "MODE START END MODE START END ..." in order, the server's run id,
-- NETFLOCK_GRACE, 1 to reclaim
-- Returns 1, or 0 when a later request of the owner came first, or when there is nothing to reclaim any more.
--#include ranges.lua
--#include range_grant.lua
--#include run.lua
local token, ttl = ARGV[1], tonumber(ARGV[3])
local id = id_of(token)
purge(id)
local stored = seq_of(id)
if ARGV[7] == '1' and not stored then
    if grace(file, ARGV[5], ARGV[6], true) == 0 then return 0 end
    for mode, a, b in string.gmatch(ARGV[4], '([xs]) (%x+) (%x+)') do
        if conflicts(ranges, a, b, mode, base_of(id))[1] then return 0 end
    end
    for mode, a, b in string.gmatch(ARGV[4], '([xs]) (%x+) (%x+)') do put(a, b, mode, id) end
    note(id, ARGV[2], token, ttl)
    return 1
end
if not stored or stored > tonumber(ARGV[2]) then return 0 end
local at = '0000000000000000'
for mode, a, b in string.gmatch(ARGV[4], '([xs]) (%x+) (%x+)') do
    put(at, a, 'u', id)
    if mode == 's' then
        for _, s in ipairs(segments(ranges, a, b, false)) do
            if string.find(',' .. s.h .. ',', ',x' .. id .. ',', 1, true) then put(later(s.a, a), earlier(s.b, b), 's', id) end
        end
    end
    at = b
end
put(at, HIGH, 'u', id)
note(id, ARGV[2], token, ttl)
grant('0', HIGH, math.min(ttl, 1500))
return 1

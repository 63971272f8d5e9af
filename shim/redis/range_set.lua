-- Sets, or gives up, or waits for, a byte range. A request that conflicts changes nothing.
-- KEYS: file   ARGV: token, length of its identity (0: no other has the same), seq, mode x|s|u, start, end, ttl ms,
-- step ('' ask once, 'q' queue when busy, 'k' note only that the caller waits in its kernel, 'c' cancel such waiting),
-- the wait's own token (NONCE is BASE.0~NUMBER) or '', owners to adopt "ID SEQ ID SEQ", 1 if the caller thinks that it holds
-- something of the file (u: afterwards; else: before), the server's run id and NETFLOCK_GRACE (run.lua)
-- Returns {1, fence}: done; {0, mode, token, start, end, ms left, waiters before, adoptable owners "ID SEQ ..."}: busy;
-- {2}: waiting would be a deadlock; {3}: a later request of this owner came first; {4}: its lease has run out, all is lost;
-- {5, ms left of the grace}.
-- What the own host's kernel refuses to nobody else it has allowed to us: a conflicting owner of the same identity is stale
-- where we ask. It is adopted (its range taken from it, or made shared) by naming it with the seq that was seen.
--#include ranges.lua
--#include range_grant.lua
--#include run.lua
local token, seq, mode, a, b, ttl = ARGV[1], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7])
local step, waiting, holds = ARGV[8], ARGV[9] ~= '', ARGV[11] == '1'
local id = id_of(token)
local me, grant_ms = base_of(id), math.min(ttl, 1500)
local identity = string.sub(token, 1, tonumber(ARGV[2]))
local ticket = waiting and id_of(ARGV[9]) or ''
local number = waiting and string.match(ticket, '~(.*)$')
local place = mode .. a .. b .. ARGV[9]
local lo, hi = a, b
if purge(id) then lo, hi = '0', HIGH end

-- Does the owner have the range exclusively, and now asks for less?
local function weaker()
    local at = a
    for _, s in ipairs(segments(ranges, a, b, false)) do
        if mode ~= 's' or s.a > at or not string.find(',' .. s.h .. ',', '[xs]' .. id .. ',') then return false end
        at = s.b
    end
    return at >= b
end

local stored = seq_of(id)
if step ~= 'c' and step ~= 'k' then
    if stored and stored > seq then return {3} end
    local grace_ms = grace(file, ARGV[12], ARGV[13], mode ~= 'u' and holds and not stored)
    if mode ~= 'u' and grace_ms > 0 and not weaker() then return {5, grace_ms} end
    if mode ~= 'u' and holds and not stored then return {4} end
end

local function stop_waiting()
    if not waiting then return end
    put(a, b, 'u', ticket)
    forget(ticket)
    leave_queue(place)
    redis.call('HDEL', 'netflock:waits:' .. me, number)
    redis.call('DEL', prefix .. 'wait:' .. ticket)
end

-- Would the owner wait for itself, through any files?
local function deadlock()
    local todo, seen = {}, {}
    local function look(name, from, to, m, base)
        local p = 'netflock:{' .. name .. '}:'
        for _, c in ipairs(conflicts(p .. 'ranges', from, to, m, base)) do
            local other = base_of(c.id)
            local till = redis.call('ZSCORE', p .. 'leases', c.id)
            if not seen[other] and till and tonumber(till) > now then
                seen[other] = true
                todo[#todo + 1] = other
            end
        end
    end
    look(file, a, b, mode, me)
    while #todo > 0 do
        local other = table.remove(todo)
        for _, w in ipairs(redis.call('HVALS', 'netflock:waits:' .. other)) do
            look(string.sub(w, 34), string.sub(w, 2, 17), string.sub(w, 18, 33), string.sub(w, 1, 1), other)
        end
        if seen[me] then return true end
    end
    return false
end

-- Only owners that are processes: an open file description waits for nothing (the kernel's rule).
local function wait_or_deadlock()
    if string.sub(id, 1, 1) ~= 'p' then return false end
    if deadlock() then return true end
    local key = 'netflock:waits:' .. me
    redis.call('HSET', key, number, mode .. a .. b .. file)
    redis.call('PEXPIRE', key, math.max(ttl, alive_ms))
    return false
end

if step == 'c' or mode == 'u' then
    stop_waiting()
    if mode == 'u' and string.find(id, '~', 1, true) then
        -- A wait that could not be cancelled in time.
        for _, member in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
            if string.sub(member, 34) == token then leave_queue(member) end
        end
        redis.call('HDEL', 'netflock:waits:' .. me, string.match(id, '~(.*)$'))
        redis.call('DEL', prefix .. 'wait:' .. id)
    end
    if mode == 'u' then
        put(a, b, 'u', id)
        if not holds then forget(id) elseif stored then note(id, ARGV[3], token, ttl) end
    end
    grant(lo, hi, grant_ms)
    return {1, ''}
end
if step == 'k' then
    grant(lo, hi, grant_ms)
    if wait_or_deadlock() then return {2} end
    return {1, ''}
end

for other, other_seq in string.gmatch(ARGV[10], '(%S+) (%d+)') do
    local now_seq, its = seq_of(other)
    if now_seq == tonumber(other_seq) and identity ~= '' and string.sub(its, 1, #identity) == identity then
        for _, s in ipairs(segments(ranges, a, b, false)) do
            for m, holder in string.gmatch(s.h, '([xs])([^,]+)') do
                if holder == other and (mode == 'x' or m == 'x') then
                    put(later(s.a, a), earlier(s.b, b), mode == 'x' and 'u' or 's', other)
                end
            end
        end
    end
end

local found = conflicts(ranges, a, b, mode, me)
if #found == 0 then
    stop_waiting()
    put(a, b, mode, id)
    note(id, ARGV[3], token, ttl)
    grant(lo, hi, grant_ms)
    return {1, next_fence()}
end

-- A real holder first; what can be adopted is of no weight beside one.
local real, adoptable = nil, {}
for _, c in ipairs(found) do
    local other_seq, its = seq_of(c.id)
    c.token = its or ''
    local ours = identity ~= '' and string.sub(c.token, 1, #identity) == identity and not string.find(c.id, '~', 1, true)
    if not ours then
        real = real or c
    elseif #adoptable < 32 then -- of the others we shall be told when these are gone
        adoptable[#adoptable + 1] = c.id .. ' ' .. string.format('%.0f', other_seq)
    end
end
if step == 'q' and real then
    grant(lo, hi, grant_ms)
    if wait_or_deadlock() then
        stop_waiting()
        return {2}
    end
    if not redis.call('ZSCORE', queue, place) then
        local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
        local arrival = t[1] * 1000000 + t[2]
        if last and tonumber(last) >= arrival then arrival = tonumber(last) + 1 end
        redis.call('ZADD', queue, string.format('%.0f', arrival), place)
    end
    redis.call('ZADD', alive, now + alive_ms, place)
    redis.call('PEXPIRE', queue, alive_ms)
    redis.call('PEXPIRE', alive, alive_ms)
end
local c = real or found[1]
local till = tonumber(redis.call('ZSCORE', leases, c.id) or now)
return {0, c.m, c.token, c.s.a, c.s.b, till - now, redis.call('ZRANK', queue, place) or -1, real and '' or table.concat(adoptable, ' ')}

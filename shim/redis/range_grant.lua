-- Included after ranges.lua: the waiters. Each is a member MODE START END TOKEN (of the wait; its NONCE is the ticket) of
-- netflock:{FILE}:rqueue (by arrival) and netflock:{FILE}:ralive (by the time until which it counts as alive).
-- A waiter is granted its range when nobody incompatible holds it, the oldest first; one that cannot be served does not hold
-- up those behind it, as in the kernel. What it gets is a short lease of its ticket, until it has confirmed.
local queue, alive, fence_key = prefix .. 'rqueue', prefix .. 'ralive', prefix .. 'rfence'
local alive_ms = 7000

local function next_fence()
    local n = redis.call('INCR', fence_key)
    if n < 1000000000000000 then
        n = t[1] * 1000000 + t[2]
        redis.call('SET', fence_key, string.format('%.0f', n), 'EX', 86400)
    end
    return string.format('%.0f', n)
end

local function wake(ticket, word)
    local list = prefix .. 'wait:' .. ticket
    redis.call('RPUSH', list, word)
    redis.call('PEXPIRE', list, 2000)
end

local function leave_queue(member)
    redis.call('ZREM', queue, member)
    redis.call('ZREM', alive, member)
end

-- [lo, hi) may have become free.
local function grant(lo, hi, grant_ms)
    if redis.call('EXISTS', queue) == 0 then return end
    -- Not in the grace after a restart (run.lua): holders may still be missing.
    local till = string.match(redis.call('GET', prefix .. 'run') or '', ':(%d+)')
    if till and tonumber(till) > now then return end
    local granted, nudged = {}, 0
    for _, member in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
        local mode, a, b = string.sub(member, 1, 1), string.sub(member, 2, 17), string.sub(member, 18, 33)
        local token = string.sub(member, 34)
        local ticket = id_of(token)
        if a < hi and b > lo then
            local until_ms = redis.call('ZSCORE', alive, member)
            local blocked = false
            for _, g in ipairs(granted) do
                blocked = blocked or (a < g.b and b > g.a and (mode == 'x' or g.mode == 'x') and base_of(ticket) ~= g.base)
            end
            if not until_ms or tonumber(until_ms) < now then
                leave_queue(member)
            elseif blocked then
                -- The next ones in line watch a grant that may have gone to a dead waiter.
                if nudged < 2 then wake(ticket, '') end
                nudged = nudged + 1
            elseif not conflicts(ranges, a, b, mode, base_of(ticket))[1] then
                put(a, b, mode, ticket)
                note(ticket, 0, token, grant_ms)
                leave_queue(member)
                redis.call('HDEL', 'netflock:waits:' .. base_of(ticket), string.match(ticket, '~(.*)$'))
                granted[#granted + 1] = {a = a, b = b, mode = mode, base = base_of(ticket)}
                wake(ticket, next_fence())
            end
        end
    end
end

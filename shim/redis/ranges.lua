-- Included by the range_ scripts: the table of byte ranges of one file.
-- netflock:{FILE}:ranges  sorted set, all scores 0: disjoint segments, as START END HOLDERS. START and END (not included) are
--                         16 hex digits, so that their order as text is their order as numbers; the largest is HIGH.
--                         HOLDERS is x|s and an owner's id, several separated by commas.
-- netflock:{FILE}:owners  hash: an owner's id -> SEQ TOKEN; SEQ grows with each request of the owner
-- netflock:{FILE}:leases  sorted set: an owner's id by the end of its lease
-- netflock:waits:BASE     hash: what the threads of the process BASE wait for, in any file: number -> MODE START END FILE
-- An owner's id is the NONCE of its token: BASE.GENERATION, or BASE.0~NUMBER for what a waiter of it was granted and has not
-- confirmed (a ticket). All with one BASE are one owner. BASE begins with p (a process) or o (an open file description).
local file, HIGH = KEYS[1], '8000000000000000'
local prefix = 'netflock:{' .. file .. '}:'
local ranges, owners, leases = prefix .. 'ranges', prefix .. 'owners', prefix .. 'leases'
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function base_of(id) return string.match(id, '^[^.~]+') end
local function id_of(token) return string.match(token, '^[^:]*:[^:]*:[^:]*:[^:]*:([^:]*)') end
local function later(a, b) return a > b and a or b end
local function earlier(a, b) return a < b and a or b end

-- The segments of a table that meet [a, b), in order; with `touching` also those that end at a or start at b.
local function segments(tbl, a, b, touching)
    local list = {}
    local before = redis.call('ZREVRANGEBYLEX', tbl, '(' .. a, '-', 'LIMIT', 0, 1)[1]
    if before then
        local e = string.sub(before, 17, 32)
        if e > a or touching and e == a then list[1] = before end
    end
    for _, m in ipairs(redis.call('ZRANGEBYLEX', tbl, '[' .. a, '(' .. b .. (touching and 'g' or ''))) do list[#list + 1] = m end
    for i, m in ipairs(list) do list[i] = {a = string.sub(m, 1, 16), b = string.sub(m, 17, 32), h = string.sub(m, 33)} end
    return list
end

-- HOLDERS with the owner's entry taken out, and a new one put in unless mode is 'u'.
local function with(holders, id, mode)
    local list = {}
    for m, other in string.gmatch(holders, '([xs])([^,]+)') do
        if other ~= id then list[#list + 1] = m .. other end
    end
    if mode ~= 'u' then
        list[#list + 1] = mode .. id
        table.sort(list)
    end
    return table.concat(list, ',')
end

-- The owner has [a, b) in this mode ('u': not at all) from now on.
local function put(a, b, mode, id)
    local old, new = segments(ranges, a, b, true), {}
    local function add(from, to, h)
        if from >= to or h == '' then return end
        local last = new[#new]
        if last and last.b == from and last.h == h then last.b = to else new[#new + 1] = {a = from, b = to, h = h} end
    end
    local at, alone = a, with('', id, mode)
    for _, s in ipairs(old) do
        if s.b <= a then
            add(s.a, s.b, s.h)
        elseif s.a >= b then
            add(at, b, alone)
            at = b
            add(s.a, s.b, s.h)
        else
            local lo, hi = later(s.a, a), earlier(s.b, b)
            add(s.a, a, s.h)
            add(at, lo, alone)
            add(lo, hi, with(s.h, id, mode))
            add(b, s.b, s.h)
            at = hi
        end
    end
    add(at, b, alone)
    local have = {}
    for _, s in ipairs(old) do have[s.a .. s.b .. s.h] = true end
    for _, s in ipairs(new) do
        local m = s.a .. s.b .. s.h
        if have[m] then have[m] = nil else redis.call('ZADD', ranges, 0, m) end
    end
    for m in pairs(have) do redis.call('ZREM', ranges, m) end
end

-- Those that keep the owner `base` from having [a, b) in this mode, the lowest range first: mode, id, segment.
local function conflicts(tbl, a, b, mode, base)
    local list, seen = {}, {}
    for _, s in ipairs(segments(tbl, a, b, false)) do
        for m, other in string.gmatch(s.h, '([xs])([^,]+)') do
            if (mode == 'x' or m == 'x') and not seen[other] and base_of(other) ~= base then
                seen[other] = true
                list[#list + 1] = {m = m, id = other, s = s}
            end
        end
    end
    return list
end

-- Takes out the owners whose leases have run out. True if there was one: any range may have become free. Not the one that
-- asks: nobody was in between, and its renewal would come in time as well.
local function purge(own)
    local till = redis.call('ZSCORE', leases, own)
    if till and tonumber(till) <= now then redis.call('ZADD', leases, now + 1000, own) end
    local gone, out = redis.call('ZRANGEBYSCORE', leases, '-inf', now), {}
    if #gone == 0 then return false end
    for _, id in ipairs(gone) do
        out[id] = true
        redis.call('HDEL', owners, id)
        redis.call('ZREM', leases, id)
    end
    for _, member in ipairs(redis.call('ZRANGE', ranges, 0, -1)) do
        local h = string.sub(member, 33)
        local left = {}
        for m, id in string.gmatch(h, '([xs])([^,]+)') do
            if not out[id] then left[#left + 1] = m .. id end
        end
        left = table.concat(left, ',')
        if left ~= h then
            -- In this order: a key that becomes empty loses its expiry, and what is in it would stay for ever.
            if left ~= '' then redis.call('ZADD', ranges, 0, string.sub(member, 1, 32) .. left) end
            redis.call('ZREM', ranges, member)
        end
    end
    return true
end

-- Notes an owner, alive for ms from now on.
local function note(id, seq, token, ms)
    redis.call('HSET', owners, id, seq .. ' ' .. token)
    redis.call('ZADD', leases, now + ms, id)
    local left = redis.call('PTTL', leases)
    if left < ms or redis.call('PTTL', ranges) < ms then
        -- All at once: of ranges that outlive their owners nobody could tell that they are free.
        for _, k in ipairs({ranges, owners, leases}) do redis.call('PEXPIRE', k, math.max(left, 2 * ms)) end
    end
end

local function forget(id)
    redis.call('HDEL', owners, id)
    redis.call('ZREM', leases, id)
end

local function seq_of(id)
    local v = redis.call('HGET', owners, id)
    return v and tonumber(string.match(v, '^%d+')), v and string.match(v, ' (.*)$')
end

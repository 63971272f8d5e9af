-- Asks for a file. The caller holds its host's kernel lock in the same mode. A token of the same identity that excludes
-- it is stale then; but by the time this runs the caller may have lost the kernel's lock to a sharer of its description.
-- So only the one token is adopted (removed) that the caller has seen, and after that looked at the kernel's lock again.
-- KEYS: lock, fence, queue, alive
-- ARGV: token, length of its identity (0 = no other has the same), mode x|s, ttl ms, wait (0: no; else the longest time in ms
-- until the caller asks again), token to adopt or '',
-- 1 if the caller had the kernel's lock before: then a token of its identity is its own lock, which goes on,
-- the server's run id and NETFLOCK_GRACE (run.lua)
-- Returns {1, fence}, or {0, mode of the holder, a holder's token (one of the same identity first), ms after which to look
-- again (-1: the holder's lease never ends), waiters before me, Redis' time in ms, ms after which a grant that nobody has
-- fetched is known to be a dead waiter's, or 0 where there is none}, or {-1, ms left of the grace}
-- Asking again with the same token confirms a grant, keeps a place in the queue, and repeats a lost answer.
-- Whoever is told to wait has an empty list: what it finds there later was sent after this answer.
local key, fence_key, queue, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, mode, ttl, wait = ARGV[1], ARGV[3], ARGV[4], tonumber(ARGV[5])
local list = 'netflock:{' .. key .. '}:wait:' .. token
--#include fence.lua
--#include run.lua
local grace_ms = grace(key, ARGV[8], ARGV[9], false)
if grace_ms == 0 and mode == 'x' and not (wait > 0 and redis.call('EXISTS', queue) == 1) and
    redis.call('SET', key, token, 'NX', 'PX', ttl) then
    -- It may have waited before: an old message must not make it look like one that has not fetched its grant.
    if wait > 0 then redis.call('DEL', list) end
    return {1, next_fence(fence_key)}
end
--#include grant.lua
ttl = tonumber(ttl)
local grant_ms = math.min(ttl, 1500)
local identity = string.sub(token, 1, tonumber(ARGV[2]))
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local me = mode .. ':' .. token

local function ours(other)
    return identity ~= '' and string.sub(other, 1, #identity) == identity
end

local function take_shared()
    redis.call('ZADD', key, now + ttl, token)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
end

local function forget_place()
    redis.call('ZREM', queue, me)
    redis.call('ZREM', alive, me)
    redis.call('DEL', list)
end

-- Confirms what a hand-over, or an earlier call whose answer was lost, has given us.
local function confirmed()
    local kind = redis.call('TYPE', key)['ok']
    if kind == 'string' and redis.call('GET', key) == token then
        redis.call('PEXPIRE', key, ttl)
    elseif kind == 'zset' and mode == 's' and redis.call('ZSCORE', key, token) then
        take_shared()
    else
        return nil
    end
    forget_place()
    return {1, redis.call('GET', fence_key) or next_fence(fence_key)}
end

local joins = false
local kind = redis.call('TYPE', key)['ok']
if kind == 'zset' then redis.call('ZREMRANGEBYSCORE', key, '-inf', now) end
local done = confirmed()
if done then return done end
local stale = ARGV[6]
-- In the grace: refused for good reason where a holder is known, else nobody can tell.
local refused = kind == 'string' or (kind == 'zset' and mode == 'x' and wait == 0 and stale == '')
if grace_ms > 0 and not refused then return {-1, grace_ms} end
if kind == 'string' then
    if mode == 'x' and ARGV[7] == '1' and ours(redis.call('GET', key)) then
        redis.call('SET', key, token, 'PX', ttl)
        forget_place()
        return {1, next_fence(fence_key)}
    end
    if redis.call('GET', key) == stale then redis.call('DEL', key) end
elseif kind == 'zset' then
    -- A shared token may stand for several readers of its host: only an exclusive lock, which none of them can have survived,
    -- removes it. Readers of one host are one to the others, so a reader joins its own host's at once.
    if mode == 'x' and stale ~= '' then redis.call('ZREM', key, stale) end
    for _, other in ipairs(redis.call('ZRANGE', key, 0, -1)) do
        if mode == 's' and ours(other) then joins = true end
    end
elseif kind ~= 'none' then
    return redis.error_reply('WRONGTYPE the key of the lock holds a ' .. kind)
end

kind = redis.call('TYPE', key)['ok']
local young, _
-- One who only asks is not refused for a grant to a dead waiter; the living ones in the queue come first.
if wait == 0 and grace_ms == 0 and (kind == 'string' or (kind == 'zset' and mode == 'x')) then
    _, young = grant_waiters(fence_key, queue, alive, grant_ms, '')
    kind = redis.call('TYPE', key)['ok']
end
if wait == 0 or joins then
    if mode == 'x' and kind == 'none' then
        redis.call('SET', key, token, 'PX', ttl)
        return {1, next_fence(fence_key)}
    elseif mode == 's' and kind ~= 'string' then
        take_shared()
        forget_place()
        return {1, next_fence(fence_key)}
    end
else
    if not redis.call('ZSCORE', queue, me) then
        local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
        local arrival = t[1] * 1000000 + t[2]
        if last and tonumber(last) >= arrival then arrival = tonumber(last) + 1 end
        redis.call('ZADD', queue, string.format('%.0f', arrival), me)
    end
    redis.call('ZADD', alive, now + wait + spare, me)
    redis.call('PEXPIRE', queue, 8000)
    redis.call('PEXPIRE', alive, 8000)
    _, young = grant_waiters(fence_key, queue, alive, grant_ms, token)
    done = confirmed()
    if done then return done end
    redis.call('DEL', list)
    kind = redis.call('TYPE', key)['ok']
end

local holder
if kind == 'string' then
    holder = redis.call('GET', key)
elseif kind == 'zset' then
    for _, other in ipairs(redis.call('ZRANGE', key, 0, -1)) do
        if not holder or ours(other) then holder = other end
    end
end
local left = redis.call('PTTL', key)
if young and (left < 0 or young < left) then left = young end
return {0, kind == 'string' and 'x' or 's', holder or '', left, redis.call('ZRANK', queue, me) or -1, now, young or 0}

-- Extends a tenure. KEYS: lock, fence   ARGV: token, mode, ttl ms, fence of the tenure, length of the token's identity,
-- the server's run id and NETFLOCK_GRACE (run.lua), 1 if the caller's own deadline is past
-- Returns {1}: extended; {2}: the key was gone, nobody had been in between, and it was taken back;
-- {0, a token that holds it now, or ''}: lost.
local key, token, ttl = KEYS[1], ARGV[1], tonumber(ARGV[3])
--#include run.lua
local in_grace = grace(key, ARGV[6], ARGV[7], true) > 0 and ARGV[8] ~= '1'
redis.call('EXPIRE', 'netflock:{' .. key .. '}:run', 86400)
local kind = redis.call('TYPE', key)['ok']
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
-- A reader whose token is gone joins again if another reader of its host is still there: the host never left.
local function present(score)
    if score then return true end
    local identity = string.sub(token, 1, tonumber(ARGV[5]))
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', key, now, '+inf')) do
        if identity ~= '' and string.sub(other, 1, #identity) == identity then return true end
    end
    return false
end

if ARGV[2] == 'x' then
    if kind == 'string' then
        local holder = redis.call('GET', key)
        if holder == token then
            redis.call('PEXPIRE', key, ttl)
            redis.call('EXPIRE', KEYS[2], 86400) -- the fence outlives the longest tenure
            return {1}
        end
        return {0, holder}
    end
elseif kind == 'zset' and present(redis.call('ZSCORE', key, token)) then
    redis.call('ZADD', key, now + ttl, token)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
    redis.call('EXPIRE', KEYS[2], 86400)
    return {1}
end
-- In the grace nobody new was let in: what Redis has forgotten its holder takes back, and the fence with it.
if in_grace and ARGV[2] == 's' and kind == 'zset' then
    redis.call('ZADD', key, now + ttl, token)
    if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
    return {2}
end
if in_grace and kind == 'none' then redis.call('SET', KEYS[2], ARGV[4], 'EX', 86400) end
if kind == 'none' and redis.call('GET', KEYS[2]) == ARGV[4] then
    if ARGV[2] == 'x' then
        redis.call('SET', key, token, 'PX', ttl)
    else
        redis.call('ZADD', key, now + ttl, token)
        redis.call('PEXPIRE', key, ttl)
    end
    redis.call('EXPIRE', KEYS[2], 86400)
    return {2}
end
local holder = ''
if kind == 'string' then holder = redis.call('GET', key) elseif kind == 'zset' then holder = redis.call('ZRANGE', key, 0, 0)[1] or '' end
return {0, holder}

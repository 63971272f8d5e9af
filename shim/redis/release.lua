-- Ends a tenure, or a wait, and hands the file to the next waiter. Deletes nothing but what belongs to the token.
-- KEYS: lock, fence, queue, alive   ARGV: token, mode, was waiting 0|1, grant ms
-- Returns 1 if the token held the file, 0 if not, plus 2 if a waiter was given it. Then it is worth to call once more, in a
-- moment: if the waiter is dead, that finds it out. The fence moves on, so that a renewal that crosses with a release
-- does not take the file back.
local key, fence_key, queue, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, mode = ARGV[1], ARGV[2]
local held = 0
if mode == 'x' then
    if redis.pcall('GET', key) == token then
        redis.call('DEL', key)
        held = 1
    end
else
    local n = redis.pcall('ZREM', key, token)
    if n == 1 then held = 1 end
end
if held == 1 and redis.call('INCR', fence_key) == 1 then redis.call('DEL', fence_key) end
if ARGV[3] == '1' then
    redis.call('ZREM', queue, mode .. ':' .. token)
    redis.call('ZREM', alive, mode .. ':' .. token)
    redis.call('DEL', 'netflock:{' .. key .. '}:wait:' .. token)
end
-- Not in the grace after a restart (run.lua): other holders may still be missing. The waiters ask again by themselves.
local function in_grace()
    local till = string.match(redis.call('GET', 'netflock:{' .. key .. '}:run') or '', ':(%d+)')
    return till and tonumber(till) > redis.call('TIME')[1] * 1000
end
if redis.call('EXISTS', queue) == 1 and not in_grace() then
--#include fence.lua
--#include grant.lua
    if grant_waiters(fence_key, queue, alive, tonumber(ARGV[4]), '') then held = held + 2 end
end
return held

-- Included by the scripts that grant. The next fencing token: the last one plus one; where there is none (a new file, or
-- Redis lost its data) the time in microseconds, which is beyond all that were given out before.
local function next_fence(fence_key)
    local n = redis.call('INCR', fence_key)
    if n < 1000000000000000 then
        local t = redis.call('TIME')
        n = t[1] * 1000000 + t[2]
        redis.call('SET', fence_key, string.format('%.0f', n), 'EX', 86400)
    end
    return string.format('%.0f', n)
end

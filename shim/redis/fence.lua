-- Included by the scripts that grant. The next fencing token: max(last + 1, now in microseconds by Redis' clock).
local function next_fence(fence_key)
    local t = redis.call('TIME')
    local n = t[1] * 1000000 + t[2]
    local last = tonumber(redis.call('GET', fence_key) or 0)
    if last >= n then n = last + 1 end
    local s = string.format('%.0f', n)
    redis.call('SET', fence_key, s, 'EX', 86400)
    return s
end

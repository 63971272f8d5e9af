-- Included after fence.lua: hands the file to the waiters at the head of the queue, as far as they fit.
-- A waiter is granted a short lease, until it has confirmed by asking again; it is woken through its own list.
-- The two waiters that are next in line then are nudged, so that they watch a grant that may have gone to a dead one.
local function grant_waiters(key, fence_key, queue, alive, grant_ms, self)
    local granted_other = false
    local t = redis.call('TIME')
    local now = t[1] * 1000 + math.floor(t[2] / 1000)
    while true do
        local head = redis.call('ZRANGE', queue, 0, 0)[1]
        if not head then return end
        local until_ms = redis.call('ZSCORE', alive, head)
        if not until_ms or tonumber(until_ms) < now then
            redis.call('ZREM', queue, head)
            redis.call('ZREM', alive, head)
        else
            local token = string.sub(head, 3)
            local kind = redis.call('TYPE', key)['ok']
            if string.sub(head, 1, 1) == 'x' then
                if kind ~= 'none' then break end
                redis.call('SET', key, token, 'PX', grant_ms)
            else
                if kind ~= 'none' and kind ~= 'zset' then break end
                redis.call('ZADD', key, now + grant_ms, token)
                if redis.call('PTTL', key) < grant_ms then redis.call('PEXPIRE', key, grant_ms) end
            end
            local fence = next_fence(fence_key)
            redis.call('ZREM', queue, head)
            redis.call('ZREM', alive, head)
            if token ~= self then
                local list = 'netflock:{' .. key .. '}:wait:' .. token
                redis.call('RPUSH', list, fence)
                redis.call('PEXPIRE', list, 2000)
                granted_other = true
            end
        end
    end
    if granted_other then
        for _, next_one in ipairs(redis.call('ZRANGE', queue, 0, 1)) do
            if string.sub(next_one, 3) ~= self then
                local list = 'netflock:{' .. key .. '}:wait:' .. string.sub(next_one, 3)
                redis.call('RPUSH', list, '')
                redis.call('PEXPIRE', list, 2000)
            end
        end
    end
end

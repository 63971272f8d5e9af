-- Included after fence.lua: hands the file to the waiters at the head of the queue, as far as they fit. A waiter is granted
-- a short lease, which ends at a moment of Redis' own clock that its message tells; it has the lock with that message.
-- A waiter sits at its list, so a message is fetched in the moment in which it is sent. One that has lain there for 200 ms
-- was for a dead one, which then is passed over: what nobody has fetched, nobody counts on, and may be taken back.
-- A waiter's score in `alive` lies `spare` ms behind the time at which it will ask again by itself.
local spare = 4000
local function wait_list(token) return 'netflock:{' .. key .. '}:wait:' .. token end

-- A second message must not make the first one look young.
local function tell(token, word)
    if redis.call('RPUSH', wait_list(token), word) == 1 then redis.call('PEXPIRE', wait_list(token), 2000) end
end

-- ms until an unfetched message of this waiter shows that it is dead; nil if there is none.
local function unfetched(token)
    local left = redis.call('PTTL', wait_list(token))
    if left >= 0 then return left - 1800 end
end

-- Takes back grants to the dead. Returns the ms after which one that is too young for that should be looked at again.
local function take_back(now, grant_ms)
    local young
    local kind = redis.call('TYPE', key)['ok']
    local holders = {}
    if kind == 'string' then
        holders = {redis.call('GET', key)}
    elseif kind == 'zset' then
        redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
        holders = redis.call('ZRANGEBYSCORE', key, now, now + grant_ms)
    end
    for _, token in ipairs(holders) do
        local ms = unfetched(token)
        if ms and ms > 0 then
            young = math.max(young or 0, ms)
        elseif ms then
            if kind == 'string' then redis.call('DEL', key) else redis.call('ZREM', key, token) end
            -- Should it live after all: it is to ask again, and not to believe the message.
            redis.call('DEL', wait_list(token))
            tell(token, '')
        end
    end
    return young
end

-- Returns whether somebody was granted it, and the ms after which to look at an unfetched grant.
local function grant_waiters(fence_key, queue, alive, grant_ms, self)
    local granted_other = false
    local t = redis.call('TIME')
    local now = t[1] * 1000 + math.floor(t[2] / 1000)
    local young = take_back(now, grant_ms)
    local head
    while true do
        head = redis.call('ZRANGE', queue, 0, 0)[1]
        if not head then break end
        local token = string.sub(head, 3)
        local until_ms = redis.call('ZSCORE', alive, head)
        local silent = token ~= self and unfetched(token)
        if not until_ms or tonumber(until_ms) < now or (silent and silent <= 0) then
            redis.call('ZREM', queue, head)
            redis.call('ZREM', alive, head)
        else
            local kind = redis.call('TYPE', key)['ok']
            if string.sub(head, 1, 1) == 'x' then
                if kind ~= 'none' then break end
                redis.call('SET', key, token)
                redis.call('PEXPIREAT', key, now + grant_ms)
            else
                if kind ~= 'none' and kind ~= 'zset' then break end
                redis.call('ZADD', key, now + grant_ms, token)
                redis.call('PEXPIREAT', key, redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
            end
            local fence = next_fence(fence_key)
            redis.call('ZREM', queue, head)
            redis.call('ZREM', alive, head)
            if token ~= self then
                tell(token, string.format('%s %.0f %d', fence, now, grant_ms))
                granted_other = true
                young = 200
            end
        end
    end
    if not head then return granted_other, young end
    if young and not granted_other then
        -- Roll call, so that all who are dead are known to be at once, and somebody who is not looks again.
        if redis.call('SET', 'netflock:{' .. key .. '}:roll', '', 'NX', 'PX', 200) then
            for _, next_one in ipairs(redis.call('ZRANGE', queue, 0, 15)) do
                local token = string.sub(next_one, 3)
                if token ~= self and not unfetched(token) then tell(token, '') end
            end
        end
    elseif granted_other then
        -- One that was stopped, or cut off, fetches its message and does not come: the next two see to it that it is looked
        -- for in time. Mostly they are about to ask anyway.
        for _, next_one in ipairs(redis.call('ZRANGE', queue, 0, 1)) do
            local token = string.sub(next_one, 3)
            local until_ms = redis.call('ZSCORE', alive, next_one)
            if token ~= self and until_ms and tonumber(until_ms) - spare > now + grant_ms + 300 and not unfetched(token) then
                tell(token, '')
            end
        end
    end
    return granted_other, young
end

-- Included by the scripts that grant or renew: has Redis been restarted, failed over or emptied since the file was last used?
-- Then it may have forgotten a grant. For one TTL, the grace, only renewals may take the file: its holders come first.
-- netflock:{FILE}:run   the server's run id (cut), during the grace followed by : and its end in ms
-- run: the caller's server, '' not known. how: 0 off, 1 auto, 2 always, then a colon and its length in ms: the lease that is
-- configured for all, which this caller's own may be shorter than. Returns the ms that are left of the grace.
local function grace(name, run, how, renewing)
    if run == '' or how == '0' then return 0 end
    local setting, ttl = string.match(how, '^(%d):(%d+)$')
    local note = 'netflock:{' .. name .. '}:run'
    local seen = redis.call('GET', note)
    if seen == run then return 0 end
    local clock = redis.call('TIME')
    local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
    local known = seen and string.sub(seen, 1, #run) == run
    local until_ms = now_ms + ttl
    if known then
        until_ms = tonumber(string.sub(seen, #run + 2)) or 0
    elseif not seen and not renewing then
        -- Nobody has used the file for a day; or all is lost, and its holders have not come back yet: nobody can tell.
        until_ms = 0
        if setting == '2' then
            local info = redis.pcall('INFO', 'server')
            local up = type(info) == 'string' and string.match(info, 'uptime_in_seconds:(%d+)')
            until_ms = up and now_ms - up * 1000 + ttl or 0
        end
    end
    if until_ms <= now_ms then
        redis.call('SET', note, run, 'EX', 86400)
        if known then
            -- Nobody can know the last fences any more; but they were all less than the time is now.
            local us = string.format('%.0f', clock[1] * 1000000 + clock[2])
            if redis.call('EXISTS', name) == 0 then redis.call('SET', 'netflock:{' .. name .. '}:fence', us, 'EX', 86400) end
            redis.call('SET', 'netflock:{' .. name .. '}:rfence', us, 'EX', 86400)
        end
        return 0
    end
    if not known then redis.call('SET', note, run .. ':' .. string.format('%.0f', until_ms), 'EX', 86400) end
    return until_ms - now_ms
end

-- Who keeps the caller from a byte range? KEYS: file   ARGV: token, length of its identity, mode, start, end
-- Only other identities are told of: of its own host the kernel knows. Returns {0}, or {1, mode, token, start, end}.
--#include ranges.lua
local identity = string.sub(ARGV[1], 1, tonumber(ARGV[2]))
for _, c in ipairs(conflicts(ranges, ARGV[4], ARGV[5], ARGV[3], base_of(id_of(ARGV[1])))) do
    local _, token = seq_of(c.id)
    local till = redis.call('ZSCORE', leases, c.id)
    if token and till and tonumber(till) > now and (identity == '' or string.sub(token, 1, #identity) ~= identity) then
        -- The whole range, however others have cut it into segments.
        local mine = c.m .. c.id
        local function has(m) return string.find(',' .. string.sub(m, 33) .. ',', ',' .. mine .. ',', 1, true) end
        local a, b = c.s.a, c.s.b
        while true do
            local m = redis.call('ZREVRANGEBYLEX', ranges, '(' .. a, '-', 'LIMIT', 0, 1)[1]
            if not m or string.sub(m, 17, 32) ~= a or not has(m) then break end
            a = string.sub(m, 1, 16)
        end
        while true do
            local m = redis.call('ZRANGEBYLEX', ranges, '[' .. b, '+', 'LIMIT', 0, 1)[1]
            if not m or string.sub(m, 1, 16) ~= b or not has(m) then break end
            b = string.sub(m, 17, 32)
        end
        return {1, c.m, token, a, b}
    end
end
return {0}

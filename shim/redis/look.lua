-- Looks who has the file, and changes nothing.
-- KEYS: lock, fence   ARGV: an identity (a token's beginning, not ''), an owner's NONCE or ''
-- Returns {1, ms left, the last fencing token or '', ''}: the identity (or, with a NONCE, that owner of byte ranges) has it;
-- {2, 0, '', token}: somebody else has it alone; {0, 0, '', ''}: neither.
local key, identity, nonce = KEYS[1], ARGV[1], ARGV[2]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local function ours(other) return string.sub(other, 1, #identity) == identity end

if nonce ~= '' then
    local till = tonumber(redis.call('ZSCORE', 'netflock:{' .. key .. '}:leases', nonce) or 0)
    return till > now and {1, till - now, '', ''} or {0, 0, '', ''}
end
local kind, left = redis.call('TYPE', key)['ok'], 0
if kind == 'string' then
    local holder = redis.call('GET', key)
    if not ours(holder) then return {2, 0, '', holder} end
    left = redis.call('PTTL', key)
elseif kind == 'zset' then
    for _, holder in ipairs(redis.call('ZRANGEBYSCORE', key, now, '+inf')) do
        if ours(holder) then left = math.max(left, tonumber(redis.call('ZSCORE', key, holder)) - now) end
    end
end
if left <= 0 then return {0, 0, '', ''} end
return {
    1, left, redis.call('GET', KEYS[2]) or '', ''}

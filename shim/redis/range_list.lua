-- What an owner holds. KEYS: file   ARGV: token   Returns {seq, "MODE START END ..."}, or {-1, ''} when it is not known.
--#include ranges.lua
local id, list = id_of(ARGV[1]), {}
local seq = seq_of(id)
if not seq then return {-1, ''} end
for _, m in ipairs(redis.call('ZRANGE', ranges, 0, -1)) do
    for mode, holder in string.gmatch(string.sub(m, 33), '([xs])([^,]+)') do
        if holder == id then list[#list + 1] = mode .. ' ' .. string.sub(m, 1, 16) .. ' ' .. string.sub(m, 17, 32) end
    end
end
return {seq, table.concat(list, ' ')}

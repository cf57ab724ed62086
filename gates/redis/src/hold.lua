-- KEYS[1] the lock. ARGV[1] the holder's number, or nothing: takes the lock. ARGV[2] how long it is held from now on, and
-- ARGV[3] how long its number is kept after that, in milliseconds. Answers the holder's number, or nothing.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last, till = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%d+)$')
local held = till and tonumber(till) > now
local fence
if ARGV[1] == '' then
    if held then return false end
    fence = math.max((last or 0) + 1, now)
else
    if not held or last ~= ARGV[1] then return false end
    fence = tonumber(last)
end
till = now + ARGV[2] * 1000
-- A number may be ahead of a clock that was set back. It is kept until the clock is past it.
local kept = math.ceil((math.max(fence, till) - now) / 1000) + ARGV[3]
redis.call('SET', KEYS[1], string.format('%.0f %.0f', fence, till), 'PX', string.format('%.0f', kept))
return fence

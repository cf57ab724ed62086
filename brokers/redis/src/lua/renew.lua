-- Says of entries that are pending with a consumer that it still works on them. Answers with those
-- that are not its any more. With 'again', it counts as another delivery.
-- KEYS: stream. ARGV: group, consumer, 'again' or 'still', ids.
local lost = {}
for i = 4, #ARGV do
  local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  local kept = {}
  if #mine == 1 then
    if ARGV[3] == 'again' then
      kept = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i])
    else
      kept = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    end
  end
  if #kept == 0 then
    lost[#lost + 1] = ARGV[i]
  end
end
return lost

-- Drops the entries that every group of the stream has been given and has acknowledged. The last
-- one that was given stays. Answers how many went.
-- KEYS: stream.
local function rank(id)
  local time, number = string.match(id, '^(%d+)-(%d+)$')
  return string.rep('0', 20 - #time) .. time .. string.rep('0', 20 - #number) .. number
end
local lowest
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local about = {}
  for i = 1, #group, 2 do
    about[group[i]] = group[i + 1]
  end
  local needed = about['last-delivered-id']
  local pending = redis.call('XPENDING', KEYS[1], about['name'])
  if pending[1] > 0 and rank(pending[2]) < rank(needed) then
    needed = pending[2]
  end
  if not lowest or rank(needed) < rank(lowest) then
    lowest = needed
  end
end
if not lowest then
  return 0
end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', lowest)

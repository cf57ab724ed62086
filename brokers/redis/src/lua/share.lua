-- A sign of life of a member, and which partitions it owns. It may give some up, and takes free
-- ones up to its fair share. Answers with the share, and the partitions.
-- KEYS: members, owners. ARGV: member, milliseconds that the sign is good for, partitions, those
-- that it gives up.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me, lease, partitions = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + lease, me)
for i = 4, #ARGV do
  if redis.call('HGET', KEYS[2], ARGV[i]) == me then
    redis.call('HDEL', KEYS[2], ARGV[i])
  end
end
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(members)
local alive, rank = {}, 0
for i, member in ipairs(members) do
  alive[member] = true
  if member == me then
    rank = i - 1
  end
end
local share = math.floor(partitions / #members)
if rank < partitions % #members then
  share = share + 1
end
local mine, free = {}, {}
for partition = 0, partitions - 1 do
  local owner = redis.call('HGET', KEYS[2], partition)
  if owner == me then
    mine[#mine + 1] = partition
  elseif not owner or not alive[owner] then
    free[#free + 1] = partition
  end
end
for _, partition in ipairs(free) do
  if #mine >= share then
    break
  end
  redis.call('HSET', KEYS[2], partition, me)
  mine[#mine + 1] = partition
end
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, lease * 10)
end
return { share, unpack(mine) }

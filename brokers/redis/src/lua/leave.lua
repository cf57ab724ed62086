-- A member leaves: what it owned is free.
-- KEYS: members, owners. ARGV: member.
redis.call('ZREM', KEYS[1], ARGV[1])
local owners = redis.call('HGETALL', KEYS[2])
for i = 1, #owners, 2 do
  if owners[i + 1] == ARGV[1] then
    redis.call('HDEL', KEYS[2], owners[i])
  end
end
return redis.status_reply('OK')

-- Forgets consumers of ours that have nothing pending and were not seen for long.
-- KEYS: stream. ARGV: group, how their names begin, milliseconds.
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local about = {}
  for i = 1, #consumer, 2 do
    about[consumer[i]] = consumer[i + 1]
  end
  local ours = string.sub(about['name'], 1, #ARGV[2]) == ARGV[2]
  if ours and about['pending'] == 0 and about['idle'] > tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], about['name'])
  end
end
return redis.status_reply('OK')

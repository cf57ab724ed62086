-- Gives everything that is pending with a consumer to nobody in particular, as something that was
-- left alone for long, so that anybody takes it over at once. Then forgets the consumer.
-- KEYS: stream. ARGV: group, consumer, the name of nobody, milliseconds.
local mine
repeat
  mine = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 500, ARGV[2])
  for _, entry in ipairs(mine) do
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry[1], 'IDLE', ARGV[4], 'JUSTID')
  end
until #mine == 0
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return redis.status_reply('OK')

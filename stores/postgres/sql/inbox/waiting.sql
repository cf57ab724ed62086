-- $1 queue, $2 the most that is counted.
SELECT count(*)
FROM (SELECT FROM counterfoil_outbox
      WHERE left(coalesce(queue, ''), 255) = $1 AND state IN ('retrying', 'held') LIMIT $2) w

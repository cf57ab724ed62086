-- ?1 queue, ?2 the most that is counted.
SELECT count(*) FROM (SELECT 1 FROM counterfoil_lanes WHERE queue_name = ?1 LIMIT ?2)

-- ?1 number of a parked message: how many later ones of its aggregate wait for it.
SELECT count(*)
FROM counterfoil_blocks b
JOIN counterfoil_pending o ON o.queue_name = b.queue_name AND o.lane_id = b.lane_id AND o.lane_kind = b.lane_kind
WHERE b.seq = ?1
  AND o.seq <> b.seq
  AND o.state IS NOT 'scheduled'

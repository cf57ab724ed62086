-- The events of parked messages that are gone, unless the message still stands somewhere: [number, ...].
DELETE e
FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) j
STRAIGHT_JOIN counterfoil_events e FORCE INDEX (counterfoil_events_seq) ON e.seq = j.seq
WHERE NOT EXISTS (SELECT 1 FROM counterfoil_history h WHERE h.seq = e.seq)
  AND NOT EXISTS (SELECT 1 FROM counterfoil_parked p WHERE p.seq = e.seq)

-- ?1 numbers of parked messages (a JSON array). Those before which another one of their lane waits for a decision, and
-- its id.
SELECT c.seq, e.id
FROM json_each(?1)
CROSS JOIN counterfoil_parked c NOT INDEXED ON c.seq = value
CROSS JOIN counterfoil_parked e NOT INDEXED ON e.seq = (
    SELECT b.seq FROM counterfoil_blocks b
    WHERE b.queue_name = c.queue
      AND b.lane_id = CAST(c.aggregate_id AS TEXT)
      AND b.lane_kind = CAST(coalesce(c.aggregate_type, '') AS TEXT)
      AND b.state = 'pending'
      AND b.seq < c.seq
      AND b.seq NOT IN (SELECT value FROM json_each(?1))
    ORDER BY b.seq
    LIMIT 1)

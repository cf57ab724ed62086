-- ?1 kept for, in milliseconds, ?2 rows in one go: parked messages that are delivered or ignored.
WITH old AS MATERIALIZED (
    SELECT seq, updated_at FROM counterfoil_parked INDEXED BY counterfoil_parked_over
    WHERE state IN ('delivered', 'ignored') AND updated_at < (SELECT ms FROM counterfoil_now) - ?1
    ORDER BY updated_at
    LIMIT ?2
)
DELETE FROM counterfoil_parked INDEXED BY counterfoil_parked_over
WHERE state IN ('delivered', 'ignored')
  AND updated_at <= (SELECT max(updated_at) FROM old)
  AND seq IN (SELECT seq FROM old)
RETURNING seq

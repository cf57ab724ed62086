-- ?1 kept for, in milliseconds, ?2 rows in one go.
WITH old AS MATERIALIZED (
    SELECT n, at FROM counterfoil_events INDEXED BY counterfoil_events_at
    WHERE at < (SELECT ms FROM counterfoil_now) - ?1
      AND seq NOT IN (SELECT seq FROM counterfoil_outbox)
      AND seq NOT IN (SELECT seq FROM counterfoil_parked)
    ORDER BY at
    LIMIT ?2
)
DELETE FROM counterfoil_events INDEXED BY counterfoil_events_at
WHERE at <= (SELECT max(at) FROM old)
  AND n IN (SELECT n FROM old)

-- ?1 kept for, in milliseconds, ?2 rows in one go.
WITH old AS MATERIALIZED (
    SELECT seq, ended_at FROM counterfoil_history INDEXED BY counterfoil_history_ended
    WHERE ended_at < (SELECT ms FROM counterfoil_now) - ?1
    ORDER BY ended_at
    LIMIT ?2
)
DELETE FROM counterfoil_history INDEXED BY counterfoil_history_ended
WHERE ended_at <= (SELECT max(ended_at) FROM old)
  AND seq IN (SELECT seq FROM old)

-- ?1 consumer, ?2 age in milliseconds, ?3 rows in one go. What waits or is parked stays.
WITH old AS MATERIALIZED (
    SELECT key, processed_at FROM counterfoil_inbox INDEXED BY counterfoil_inbox_applied
    WHERE consumer = ?1 AND state = 'applied' AND processed_at < (SELECT ms FROM counterfoil_now) - ?2
    ORDER BY processed_at
    LIMIT ?3
)
DELETE FROM counterfoil_inbox INDEXED BY counterfoil_inbox_applied
WHERE consumer = ?1
  AND state = 'applied'
  AND processed_at <= (SELECT max(processed_at) FROM old)
  AND key IN (SELECT key FROM old)

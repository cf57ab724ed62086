-- ?1 kept for, in milliseconds, ?2 rows in one go.
WITH old AS MATERIALIZED (
    SELECT scope, key, created_at FROM counterfoil_ledger INDEXED BY counterfoil_ledger_created
    WHERE created_at < (SELECT ms FROM counterfoil_now) - ?1
    ORDER BY created_at
    LIMIT ?2
)
DELETE FROM counterfoil_ledger INDEXED BY counterfoil_ledger_created
WHERE created_at <= (SELECT max(created_at) FROM old)
  AND (scope, key) IN (SELECT scope, key FROM old)

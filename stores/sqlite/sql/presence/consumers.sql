WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
SELECT consumer, member, lease_until > ms, reported_at, status
FROM counterfoil_consumers, clock
WHERE lease_until >= ms - 86400000
ORDER BY consumer, member

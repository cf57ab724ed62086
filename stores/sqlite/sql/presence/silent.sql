DELETE FROM counterfoil_consumers
WHERE lease_until < CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) - 86400000

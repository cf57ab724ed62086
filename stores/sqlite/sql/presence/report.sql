-- ?1 member, ?2 consumer, ?3 status, ?4 lease in milliseconds.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
INSERT OR REPLACE INTO counterfoil_consumers (member, consumer, status, reported_at, lease_until)
SELECT ?1, ?2, ?3, ms, ms + ?4 FROM clock

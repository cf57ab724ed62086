-- ?1 consumer, ?2 kind, ?3 id, ?4 version. What an operator has applied late does not bring the version down.
UPDATE counterfoil_inbox_lanes
SET version = max(coalesce(version, ?4), ?4), touched = CAST(julianday('now') - 2440587.5 AS INTEGER)
WHERE consumer = ?1 AND kind = ?2 AND id = ?3

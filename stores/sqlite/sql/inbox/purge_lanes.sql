-- ?1 consumer, ?2 age in milliseconds, ?3 rows in one go.
WITH old AS MATERIALIZED (
    SELECT kind, id, touched FROM counterfoil_inbox_lanes INDEXED BY counterfoil_inbox_lanes_touched
    WHERE consumer = ?1 AND touched < ((SELECT ms FROM counterfoil_now) - ?2) / 86400000
    ORDER BY touched, kind, id
    LIMIT ?3
)
DELETE FROM counterfoil_inbox_lanes INDEXED BY counterfoil_inbox_lanes_touched
WHERE consumer = ?1
  AND touched <= (SELECT max(touched) FROM old)
  AND (kind, id) IN (SELECT kind, id FROM old)

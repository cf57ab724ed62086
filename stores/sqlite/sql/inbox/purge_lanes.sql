-- ?1 consumer, ?2 age in milliseconds, ?3 rows in one go. By primary key: many are of one day.
WITH old AS MATERIALIZED (
    SELECT kind, id FROM counterfoil_inbox_lanes INDEXED BY counterfoil_inbox_lanes_touched
    WHERE consumer = ?1 AND touched < ((SELECT ms FROM counterfoil_now) - ?2) / 86400000
    ORDER BY touched
    LIMIT ?3
)
DELETE FROM counterfoil_inbox_lanes INDEXED BY sqlite_autoindex_counterfoil_inbox_lanes_1
WHERE consumer = ?1
  AND (kind, id) IN (SELECT kind, id FROM old)

-- ?1 consumer, ?2 kind, ?3 id.
INSERT INTO counterfoil_inbox_lanes (consumer, kind, id) VALUES (?1, ?2, ?3) ON CONFLICT (consumer, kind, id) DO NOTHING

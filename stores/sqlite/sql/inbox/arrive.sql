-- ?1 consumer, ?2 key. Changes a row when it was not there.
INSERT INTO counterfoil_inbox (consumer, key) VALUES (?1, ?2) ON CONFLICT (consumer, key) DO NOTHING

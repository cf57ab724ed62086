-- ?1 consumer, ?2 key. Changes a row when it was not there, or was put off.
INSERT INTO counterfoil_inbox (consumer, key) VALUES (?1, ?2)
ON CONFLICT (consumer, key) DO UPDATE SET state = 'applied', processed_at = excluded.processed_at
WHERE counterfoil_inbox.state = 'waiting'

-- ?1 consumer, ?2 key.
UPDATE counterfoil_inbox SET state = 'waiting' WHERE consumer = ?1 AND key = ?2

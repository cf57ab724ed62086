-- ?1 numbers of parked messages that are gone (a JSON array): their events, unless the history still has the message.
DELETE FROM counterfoil_events INDEXED BY counterfoil_events_seq
WHERE seq IN (SELECT value FROM json_each(?1))
  AND seq NOT IN (SELECT seq FROM counterfoil_history)

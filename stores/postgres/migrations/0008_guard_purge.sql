-- For the purge. The BRIN index of the beginning forgets nothing of rows that are gone: once their pages are used again, every
-- part of the table seems to hold records that have expired, and each purge reads all of it.
CREATE INDEX IF NOT EXISTS counterfoil_guard_past ON counterfoil_guard (expires_at)
    WHERE state IN ('succeeded', 'retryable', 'failed');

-- As claim.sql, in the place of the record with the number that is expected.
SET @counterfoil_patience = @@SESSION.innodb_lock_wait_timeout;
SET SESSION innodb_lock_wait_timeout = 1 /*M! - 1 */;
UPDATE /* counterfoil key={key} */ counterfoil_guard
SET fence = GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))),
    updated_at = UTC_TIMESTAMP(6), lease_until = UTC_TIMESTAMP(6), state = 'processing', fingerprint = REPEAT(X'00', 32)
WHERE digest = X'{digest}' AND fence = {expected};
SET SESSION innodb_lock_wait_timeout = @counterfoil_patience;
SAVEPOINT counterfoil

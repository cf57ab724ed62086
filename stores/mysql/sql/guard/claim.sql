-- The claim is never seen from outside: what commits is the finished record. It has no fingerprint and no lease.
-- MariaDB does not wait at all when somebody else holds this key; MySQL knows no patience below a second.
SET @counterfoil_patience = @@SESSION.innodb_lock_wait_timeout;
SET SESSION innodb_lock_wait_timeout = 1 /*M! - 1 */;
INSERT /* counterfoil key={key} */ INTO counterfoil_guard
    (digest, fence, created_at, updated_at, expires_at, attempts, state, scope, business_type, name, fingerprint)
VALUES
    (X'{digest}', TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)),
     UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 1, 'processing', X'', X'', X'', X'');
SET SESSION innodb_lock_wait_timeout = @counterfoil_patience;
SAVEPOINT counterfoil

-- The claim is not seen from outside: what commits is the finished record. Only when the business commits behind our
-- back the claim stays, and is uncertain, because its lease is over from the beginning.
-- MariaDB does not wait at all when somebody else holds this key; MySQL knows no patience below a second.
SET @counterfoil_patience = @@SESSION.innodb_lock_wait_timeout;
SET SESSION innodb_lock_wait_timeout = 1 /*M! - 1 */;
INSERT /* counterfoil key={key} */ INTO counterfoil_guard
    (digest, fence, created_at, updated_at, expires_at, lease_until, attempts, state, scope, business_type, name,
     fingerprint)
VALUES
    (X'{digest}', TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)),
     UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 1, 'processing', X'{scope}',
     X'{business_type}', X'{name}', REPEAT(X'00', 32));
SET SESSION innodb_lock_wait_timeout = @counterfoil_patience;
SAVEPOINT counterfoil

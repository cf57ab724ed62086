-- $1 digest.
DELETE FROM counterfoil_guard WHERE digest = $1

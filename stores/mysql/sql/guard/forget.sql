-- Digest.
DELETE FROM counterfoil_guard WHERE digest = ?

-- Digest, owner.
DELETE FROM counterfoil_tokens WHERE digest = ? AND owner = ? AND expires_at > UTC_TIMESTAMP(6)

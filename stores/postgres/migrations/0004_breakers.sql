-- What of a breaker survives a restart: an operator's word, and until when it is open by the clock of
-- the process that wrote it. Times in milliseconds.
CREATE TABLE IF NOT EXISTS counterfoil_breakers (
    destination text   PRIMARY KEY,
    forced      text   CHECK (forced IN ('open', 'closed')),
    forced_by   text,
    open_until  bigint,
    open_for    bigint
);

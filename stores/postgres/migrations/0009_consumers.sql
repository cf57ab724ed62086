-- How running consumers are, as they say themselves every few seconds (a JSON object).
CREATE TABLE IF NOT EXISTS counterfoil_consumers (
    member      text        PRIMARY KEY,
    consumer    text        NOT NULL,
    status      text        NOT NULL,
    reported_at timestamptz NOT NULL,
    lease_until timestamptz NOT NULL
);

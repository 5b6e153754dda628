-- Locks as rows. A free lock keeps its row, and with it its version.
CREATE TABLE IF NOT EXISTS lab.locks (
    name       text PRIMARY KEY,
    -- The token of the holder; NULL: free.
    owner      text,
    -- How often it was taken: a fencing token, which only ever grows.
    version    bigint NOT NULL,
    expires_at timestamptz NOT NULL
);
